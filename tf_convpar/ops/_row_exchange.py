"""Rows that devices of several processes exchange, past TensorFlow's gRPC.

A row is some statistics of a normalization, or a pack of weights. An op runs on
each device, and ends when it has what all others have sent. So all devices must
run it, in the same step. It has a gradient: that of a row is the sum of the
gradients that all devices have for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar._compat.patches import replace

from . import _library
from ._devices import same_device

# Of exchanges that this process has traced.
_numbers = itertools.count()
# The attribute of a graph that says how often it has the gradient of an op.
_TIMES = "_tf_convpar_times"

replace(
    "tensorflow.python.framework.auto_control_deps:"
    "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS",
    by=lambda kinds: kinds | {"TfConvpar>ExchangeRows", "TfConvpar>SumRows"},
)


def listen(host: str) -> tuple[int, int] | None:
    """Lets other processes exchange rows with that of the device in scope.

    Args:
        host: The name or address by which others reach its machine. Nobody
            reaches it by another one.

    Returns:
        The number by which they know that process, and its port, the same at
        each call. None if the machine has no such address.
    """
    identity, port = map(
        int, _library.module().tf_convpar_peers_listen(host=host).numpy()
    )
    return (identity, port) if port else None


def connect(address: tuple[int, int], host: str) -> bool:
    """Connects the process of the device in scope to another one.

    Args:
        address: What `listen` has returned there.
        host: Name or address of the machine that it is on.

    Returns:
        Whether there is a connection.
    """
    connected = _library.module().tf_convpar_peers_connect(
        address=tf.constant(address, tf.int64), host=host
    )
    return bool(connected.numpy())


def exchange_rows(
    rows: Sequence[tf.Tensor],
    devices: Sequence[str],
    peers: Sequence[int],
    *,
    weights: bool = False,
    after: Mapping[str, tf.Tensor] | None = None,
) -> list[list[tf.Tensor]]:
    """Gives each device the rows of all devices.

    ```python
    on_first, on_second = exchange_rows([row, other], devices, peers)
    ```

    Args:
        rows: The row of each device, float32 or float64. One that has no
            numbers is not sent.
        devices: Names of the devices, each of which has its row.
        peers: Their processes, by the numbers of `listen`, all connected.
        weights: Whether they are weights, which statistics pass by.
        after: For some devices, a tensor on it that must be computed before it
            sends its row.

    Returns:
        For each device, a copy of all rows.
    """
    scope = f"tf_convpar_rows_{next(_numbers)}"
    after = after or {}
    received = []
    for number, (row, device) in enumerate(zip(rows, devices, strict=True)):
        first = [after[device]] if device in after else []
        # The ops of an exchange know each other by the scope. One that ends
        # with a slash is in no other.
        with (
            tf.name_scope(f"{scope}/"),
            tf.device(device),
            tf.control_dependencies(first),
        ):
            received.append(
                _library.module().tf_convpar_exchange_rows(
                    row=row,
                    N=len(peers),
                    peers=peers,
                    number=number,
                    shapes=_shapes(rows),
                    weights=weights,
                    name=f"of_{number}",
                )
            )
    return received


def _shapes(rows: Sequence[tf.Tensor]) -> list[tf.TensorShape]:
    """The shape of each row; none if all have that of the device's own."""
    shapes = [row.shape for row in rows]
    alike = all(shape.as_list() == shapes[0].as_list() for shape in shapes)
    return [] if alike else shapes


@tf.RegisterGradient("TfConvpar>ExchangeRows")
def _sum(op: Any, *gradients: tf.Tensor) -> tf.Tensor:
    """The gradient of a device's row: what all devices have for it, in sum."""
    total: tf.Tensor = _mirrored(
        op,
        lambda **attributes: _library.module().tf_convpar_sum_rows(
            rows=list(gradients), **attributes
        ),
    )
    return total


@tf.RegisterGradient("TfConvpar>SumRows")
def _exchange(op: Any, gradient: tf.Tensor) -> list[tf.Tensor]:
    """The gradients of all rows of a sum are gradients of other devices."""
    rows: list[tf.Tensor] = _mirrored(
        op,
        lambda **attributes: _library.module().tf_convpar_exchange_rows(
            row=gradient,
            N=len(op.get_attr("peers")),
            shapes=_shapes(op.inputs),
            **attributes,
        ),
    )
    return rows


def _mirrored(op: Any, make: Callable[..., Any]) -> Any:
    """Makes the gradient of an op, in a scope that other devices know."""
    output = op.outputs[0]
    scope, _, name = output.op.name.rpartition("/")
    # A tape may come here several times, in the same order on all devices.
    times = getattr(output.graph, _TIMES, {})
    setattr(output.graph, _TIMES, times)
    time = times[output.op.name] = times.get(output.op.name, 0) + 1
    with (
        tf.name_scope(f"{scope}_gradient_{time}/"),
        same_device(output.device),
    ):
        return make(
            peers=op.get_attr("peers"),
            number=op.get_attr("number"),
            weights=op.get_attr("weights"),
            name=name,
        )
