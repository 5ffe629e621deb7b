"""Gives each device rows of numbers from several devices, as soon as can be.

Normalizations exchange statistics twice for each layer, and all devices wait
for each of them; weights and their gradients take most of a step's bytes. So
both have connections of their own between processes, wherever there can be
some. Elsewhere they travel as all other tensors do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tf_convpar import machines
from tf_convpar import ops
from tf_convpar._compat.tensorflow import task_addresses
from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import device_type

# Pairs of processes that cannot connect to each other; nobody tries again.
_apart: set[frozenset[int]] = set()
# The attribute of a graph with the peers that its exchanges have.
_KNOWN = "_tf_convpar_peers"


def rows_of_all(
    rows: Sequence[tf.Tensor],
    devices: Sequence[str],
    holders: Sequence[str] | None = None,
    *,
    wire_dtype: str | None = None,
    weights: bool = False,
    after: Mapping[str, tf.Tensor] | None = None,
) -> list[list[tf.Tensor]]:
    """For each device, a copy of the row of every holder.

    ```python
    on_first, on_second = rows_of_all([moments, other_moments], devices)
    ```

    The gradient of a row is the sum of what all devices have for it, added in
    the order of the devices. Whoever asks for the gradient by one row has to
    ask for those by all of them: each device sends what it has for the others
    when it computes its own.

    Args:
        rows: The row of each holder, on its device, all of one dtype.
        devices: Names of the devices that need rows, each once.
        holders: Names of those that have them; None if they are the same.
        wire_dtype: The dtype in which rows and gradients travel; None for
            their own.
        weights: Whether rows are weights. They have time: statistics pass them
            by.
        after: For each device that is to wait, a tensor on it that must be
            computed before it sends its row; None for no wait.
    """
    holders = devices if holders is None else holders
    after = after or {}
    peers = None
    # A device that has no row has no gradient either, so it could not send one.
    if sorted(holders) == sorted(devices) and wire_dtype in (
        None,
        rows[0].dtype.name,
    ):
        peers = _peers(rows, holders)
    if peers is not None:
        received = ops.exchange_rows(
            rows, holders, peers, weights=weights, after=after
        )
        by_device = dict(zip(holders, received, strict=True))
        return [by_device[device] for device in devices]
    return rows_sent(rows, devices, holders, wire_dtype, after)


def rows_sent(
    rows: Sequence[tf.Tensor],
    devices: Sequence[str],
    holders: Sequence[str],
    wire_dtype: str | None,
    after: Mapping[str, tf.Tensor],
) -> list[list[tf.Tensor]]:
    """The same as `rows_of_all`, by TensorFlow's own messages."""
    copies = [
        broadcast(row, devices, holder, wire_dtype, after.get(holder))
        for row, holder in zip(rows, holders, strict=True)
    ]
    return [list(here) for here in zip(*copies, strict=True)]


def row_ports(devices: Sequence[str]) -> list[int]:
    """The ports at which processes of devices exchange rows, if they can.

    ```python
    ports = row_ports(strategy.devices)
    total, counted_on = machines.byte_counter([2222, 2223, *ports])
    ```
    """
    addresses = _addresses(devices)
    return [] if addresses is None else [port for _, port in addresses]


def _peers(
    rows: Sequence[tf.Tensor], devices: Sequence[str]
) -> list[int] | None:
    """Processes of devices, all connected; None if not, or not in a graph."""
    if tf.executing_eagerly() or any(
        row.dtype not in (tf.float32, tf.float64) for row in rows
    ):
        return None
    # Asked once for each graph: while it is traced, the cluster stays as it is.
    graph = tf.compat.v1.get_default_graph()
    known = getattr(graph, _KNOWN, {})
    setattr(graph, _KNOWN, known)
    key = tuple(devices)
    if key not in known:
        known[key] = _connected(devices)
    processes: list[int] | None = known[key]
    return processes


def _connected(devices: Sequence[str]) -> list[int] | None:
    """Connects the processes of devices; None if that is not possible."""
    addresses = _addresses(devices)
    if addresses is None:
        return None
    with tf.init_scope():
        for one, other in itertools.combinations(range(len(devices)), 2):
            pair = frozenset((addresses[one][0], addresses[other][0]))
            if pair in _apart:
                return None
            with tf.device(machines.cpu_of(devices[one])):
                host = _host(devices[other])
                if not ops.connect(addresses[other], host):
                    _apart.add(pair)
                    return None
    return [number for number, _ in addresses]


def _addresses(devices: Sequence[str]) -> list[tuple[int, int]] | None:
    """Number and port of the process of each device, if each has its own."""
    tasks = {machines.task_of(device) for device in devices}
    if (
        len(tasks) < max(2, len(devices))
        or any(device_type(device) != "CPU" for device in devices)
        or not ops.load()
        or not tasks <= task_addresses().keys()
    ):
        return None
    addresses = []
    with tf.init_scope():
        for device in devices:
            with tf.device(machines.cpu_of(device)):
                address = ops.listen(_host(device))
            if address is None:
                return None
            addresses.append(address)
    return addresses


def _host(device: str) -> str:
    """Where the task of a device runs, as the cluster's addresses say."""
    address = task_addresses()[machines.task_of(device)]
    return address.rpartition(":")[0].strip("[]")
