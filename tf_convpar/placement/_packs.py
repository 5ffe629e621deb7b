"""Weights that travel together: one message for many.

A message costs each end a tenth of a millisecond of its core, whatever is in
it, and a network has hundreds of weights. While a graph of layers is run, the
weights that its layers need on several devices are sent in packs, in the order
in which layers need them. The first packs are small, so that the first layers
can begin, and so that the last gradients of a step do not wait for others.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import should_record_backprop
from tf_convpar.placement._placed_variable import value_of
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._row_exchange import rows_of_all
from tf_convpar.placement._row_exchange import rows_sent
from tf_convpar.placement._send_order import everywhere_in_turn
from tf_convpar.placement._send_order import in_turn
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Bytes of the weights in the first pack, and the most in later ones. A weight
# that is larger is sent in pieces of as many. With smaller ones, what all
# devices wait for would go ahead sooner (of two devices each sends half of a
# pack, 8 ms of Gigabit Ethernet), but messages would take more of both ends'
# time than that saves (`benchmarks/cluster`).
_FIRST, PACK_BYTES = 1 << 16, 1 << 21


@dataclasses.dataclass(frozen=True, eq=False)
class Needed:
    """A weight that layers need on several devices.

    Attributes:
        weight: The variable.
        devices: Names of the devices.
        owner: The chief's device.
        wire_dtype: The dtype in which it and its gradients travel; None for its
            own.
    """

    weight: keras.Variable
    devices: tuple[str, ...]
    owner: str
    wire_dtype: str | None

    @property
    def bytes_(self) -> int:
        """Bytes of the weight."""
        shape = self.weight.shape
        return tf.as_dtype(self.weight.dtype).size * math.prod(shape)

    def pack_key(self) -> tuple[Any, ...]:
        """The key that weights in one pack have in common."""
        kind_of_weight = self.weight.dtype, self.weight.trainable
        return self.devices, self.owner, self.wire_dtype, *kind_of_weight

    @property
    def holders(self) -> tuple[str, ...]:
        """Devices that have a part of the weight."""
        layout = getattr(self.weight, "layout", None)
        return (self.owner,) if layout is None else layout.devices


def messages_of(
    needed: Sequence[Needed], training: bool
) -> Mapping[tuple[str, str], int]:
    """Counts the messages in which packs of weights travel.

    Args:
        needed: Weights in the order in which they are needed, each once.
        training: Whether gradients of trainable weights return.

    Returns:
        The number from each device to each other one.
    """
    messages: collections.Counter[tuple[str, str]] = collections.Counter()
    for pack in _packs_of(needed):
        first = pack[0]
        returns = training and first.weight.trainable
        holders = dict.fromkeys(
            name for needed_weight in pack for name in needed_weight.holders
        )
        for source, target in itertools.product(
            holders, dict.fromkeys(first.devices)
        ):
            if source != target:
                messages[source, target] += _pieces(pack)
                messages[target, source] += _pieces(pack) * returns
    return messages


@contextlib.contextmanager
def packed(needed: Sequence[Needed]) -> Iterator[None]:
    """A context in which `copies_of` sends these weights in packs.

    No weight may change meanwhile.

    Args:
        needed: Weights in the order in which they are needed, each once.
    """
    token = _current_run.set(_GraphRun(needed))
    try:
        yield
    finally:
        _current_run.reset(token)


def copies_of(
    weight: keras.Variable,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
) -> list[tf.Tensor]:
    """A variable's value on each device.

    ```python
    copies_of(layer.kernel, layout.devices, layout.owner, "bfloat16")
    ```

    Args:
        weight: A variable, in shards or on the owner.
        devices: Names of the devices that need it.
        owner: The chief's device.
        wire_dtype: The dtype in which it and its gradients travel; None for
            its own.
    """
    needed = Needed(weight, tuple(devices), owner, wire_dtype)
    run = _current_run.get()
    copies = None
    if run is not None and not tf.executing_eagerly():
        copies = run.take(needed)
    if copies is not None:
        return copies
    return everywhere_in_turn(value_of(weight), devices, owner, wire_dtype)


class _GraphRun:
    """One run of a graph of layers, with the packs sent in it so far."""

    def __init__(self, needed: Sequence[Needed]) -> None:
        self._packs = _packs_of(needed)
        self._pack_numbers = {
            id(needed_weight.weight): number
            for number, pack in enumerate(self._packs)
            for needed_weight in pack
        }
        # For each pack the graph it was sent in, and the copies left of it.
        self._sent: dict[int, tuple[tf.Graph, dict[int, list[tf.Tensor]]]] = {}

    def take(self, needed: Needed) -> list[tf.Tensor] | None:
        """The copies of a weight, which is sent now if it has not been.

        None where it has to be sent by itself: it is in no such pack, or has
        been taken before, and gradients along two paths would be added up on
        the chief; or the pack was sent from within a function that is
        differentiated by itself.
        """
        number = self._pack_numbers.get(id(needed.weight))
        if number is None:
            return None
        pack = self._packs[number]
        single = len(pack) == 1 and needed.bytes_ <= PACK_BYTES
        if single or pack[0].pack_key() != needed.pack_key():
            return None
        graph = tf.compat.v1.get_default_graph()
        if number not in self._sent:
            copies = _copies_of_pack(pack)
            copies_by_weight = {
                id(n.weight): c for n, c in zip(pack, copies, strict=True)
            }
            self._sent[number] = graph, copies_by_weight
        pack_graph, untaken = self._sent[number]
        copies_now = untaken.get(id(needed.weight))
        if pack_graph is not graph or copies_now is None:
            return None
        value = value_of(needed.weight)
        shards = value.shards if isinstance(value, ShardedTensor) else [value]
        if should_record_backprop(shards) and not (
            should_record_backprop(copies_now)
        ):
            return None
        del untaken[id(needed.weight)]
        return copies_now


_current_run: contextvars.ContextVar[_GraphRun | None] = contextvars.ContextVar(
    "run", default=None
)


def _packs_of(needed: Sequence[Needed]) -> list[list[Needed]]:
    packs: list[list[Needed]] = []
    open_packs: dict[Any, list[Needed]] = {}
    limits: dict[Any, int] = {}
    for needed_weight in needed:
        key = needed_weight.pack_key()
        pack = open_packs.get(key)
        limit = limits.setdefault(key, _FIRST)
        held_bytes = sum(other.bytes_ for other in pack or ())
        if pack is None or held_bytes + needed_weight.bytes_ > limit:
            if pack is not None:
                limits[key] = min(2 * limit, PACK_BYTES)
            pack = open_packs[key] = []
            packs.append(pack)
        pack.append(needed_weight)
    return packs


def _pieces(pack: Sequence[Needed]) -> int:
    """Count of pieces, each a message, in a holder's part of a pack."""
    return math.ceil(sum(weight.bytes_ for weight in pack) / PACK_BYTES)


def _copies_of_pack(pack: Sequence[Needed]) -> list[list[tf.Tensor]]:
    """Sends a pack, and returns the copies of each of its weights."""
    first = pack[0]
    # Each device once, though it may have several parts of a layer.
    devices = list(dict.fromkeys(first.devices))
    values = [value_of(weight.weight) for weight in pack]
    parts = [_parts(value, first.owner) for value in values]
    holders: list[str] = []
    holder_numbers = [
        _numbered([device for device, _ in weight_parts], holders)
        for weight_parts in parts
    ]
    if holders == devices and len(devices) == 1:
        # All of it is where it is needed.
        return [[shard] * len(first.devices) for ((_, shard),) in parts]
    rows = []
    for number, device in enumerate(holders):
        shards_here = [
            shard
            for numbers, weight_parts in zip(holder_numbers, parts, strict=True)
            for n, (_, shard) in zip(numbers, weight_parts, strict=True)
            if n == number
        ]
        cuts = ops.Cuts.of_one([x.shape for x in shards_here])
        (row,) = _run_on(
            device, ops.to_pieces, shards_here, cuts, _pieces(pack)
        )
        rows.append(row)
    cuts = _cuts(values, parts, holder_numbers, len(holders))
    # Of a pack in which one weight is on some devices only, a program may want
    # that weight's gradient alone, of which the other devices know nothing.
    exchanged = all(
        {device for device, _ in weight_parts} == set(devices)
        for weight_parts in parts
    )
    copies = {
        device: _run_on(device, ops.from_pieces, pieces, cuts)
        for device, pieces in _everywhere(
            rows, holders, devices, first.wire_dtype, exchanged
        ).items()
    }
    return [
        [copies[device][k] for device in first.devices]
        for k in range(len(pack))
    ]


def _parts(value: Any, owner: str) -> list[tuple[str, tf.Tensor]]:
    """The parts of a weight, in order, each with the device that has it."""
    if isinstance(value, ShardedTensor):
        return list(zip(value.layout.devices, value.shards, strict=True))
    return [(owner, value)]


def _numbered(devices: Sequence[str], holders: list[str]) -> list[int]:
    """Numbers of holders, rising, for devices that have parts of a weight.

    A device that has two parts with another's between them is two holders.
    New ones are added to the holders.
    """
    numbers: list[int] = []
    for device in devices:
        begin = numbers[-1] + 1 if numbers else 0
        if device not in holders[begin:]:
            holders.append(device)
        numbers.append(holders.index(device, begin))
    return numbers


def _cuts(
    values: Sequence[Any],
    parts: Sequence[Sequence[tuple[str, tf.Tensor]]],
    holder_numbers: Sequence[Sequence[int]],
    holders: int,
) -> ops.Cuts:
    """How weights are cut between holders, by the holders' numbers."""
    axes, widths = [], []
    for value, weight_parts, numbers in zip(
        values, parts, holder_numbers, strict=True
    ):
        rank = value.shape.rank
        sharded = isinstance(value, ShardedTensor)
        axes.append(value.layout.axis + rank if sharded else 0)
        width = [0] * holders
        for number, (_, shard) in zip(numbers, weight_parts, strict=True):
            width[number] = shard.shape[axes[-1]] if rank else 1
        widths.append(width)
    return ops.Cuts([value.shape for value in values], axes, widths)


def _run_on(device: str, run: Callable[..., Any], *args: Any) -> Any:
    """Runs an op on pieces, on a device."""
    name = "ToPieces" if run is ops.to_pieces else "FromPieces"
    native = ops.native_on(name, device)
    if native is None and ops.load():
        # Its gradient runs where it did.
        with tf.device(device):
            return run(*args)
    tensors, *settings = args
    flat = tf.nest.flatten(tensors)

    def twin(*tensors_there: tf.Tensor) -> Any:
        return run(
            tf.nest.pack_sequence_as(tensors, tensors_there),
            *settings,
            native=False,
        )

    return on_device(twin, device)(*flat)


def _everywhere(
    rows: Sequence[Sequence[tf.Tensor]],
    holders: Sequence[str],
    devices: Sequence[str],
    wire_dtype: str | None,
    exchanged: bool,
) -> dict[str, list[list[tf.Tensor]]]:
    """Sends each device the rows of all holders, a piece of each in turn.

    Args:
        rows: The pieces of each holder, as many of one as of another.
        holders: Names of their devices.
        devices: Names of the devices that need all of them.
        wire_dtype: The dtype in which they travel; None for their own.
        exchanged: Whether all devices have a part of each weight.

    Returns:
        For each device the pieces that it got, by holders.
    """
    arrived: dict[str, list[list[tf.Tensor]]] = {
        device: [[] for _ in holders] for device in devices
    }
    for pieces in zip(*rows, strict=True):
        bytes_ = sum(x.dtype.size * x.shape.num_elements() for x in pieces)
        with in_turn(bytes_) as turn:
            if exchanged:
                copies = rows_of_all(
                    *(pieces, devices, holders),
                    wire_dtype=wire_dtype,
                    weights=True,
                    after=turn.after,
                )
            else:
                copies = rows_sent(
                    pieces, devices, holders, wire_dtype, turn.after
                )
            # On a device that is sent nothing, its own piece.
            last = dict(zip(holders, pieces, strict=True))
            for device, here in zip(devices, copies, strict=True):
                for number, (copy, holder) in enumerate(
                    zip(here, holders, strict=True)
                ):
                    arrived[device][number].append(copy)
                    if device != holder:
                        last[device] = copy
            turn.arrived = last
    return arrived
