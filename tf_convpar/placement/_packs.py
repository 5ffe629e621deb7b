"""Weights that travel together: one message for many.

A message costs each end a tenth of a millisecond of its core, whatever is in
it, and a network has hundreds of weights. While a graph of layers is run, the
weights that its layers need on several devices are sent in packs, in the order
in which layers need them. The first packs are small, so that the first layers
can begin, and so that the last gradients of a step do not wait for others.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import should_record_backprop
from tf_convpar.placement._cutting import concatenated
from tf_convpar.placement._exchange import join
from tf_convpar.placement._in_turn import everywhere_in_turn
from tf_convpar.placement._in_turn import in_turn
from tf_convpar.placement._placed_variable import value_of
from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Bytes of the weights in the first pack, and in later ones. A weight that is
# larger is sent in pieces of as many. What all devices wait for may come behind
# that: 4 ms on Gigabit Ethernet.
_FIRST, PACK_BYTES = 1 << 16, 1 << 19


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

    def alike(self) -> tuple[Any, ...]:
        """What weights in one pack have in common."""
        own = self.weight.dtype, self.weight.trainable
        return self.devices, self.owner, self.wire_dtype, *own


@contextlib.contextmanager
def packed(needed: Sequence[Needed]) -> Iterator[None]:
    """Within it, `copies_of` these weights come in packs.

    No weight may change meanwhile.

    Args:
        needed: Weights in the order in which they are needed, each once.
    """
    token = _run.set(_Run(needed))
    try:
        yield
    finally:
        _run.reset(token)


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
    run = _run.get()
    found = None
    if run is not None and not tf.executing_eagerly():
        found = run.take(needed)
    if found is not None:
        return found
    return everywhere_in_turn(value_of(weight), devices, owner, wire_dtype)


class _Run:
    """One run of a graph of layers, and what has been sent in it so far."""

    def __init__(self, needed: Sequence[Needed]) -> None:
        self._packs: list[list[Needed]] = []
        open_packs: dict[Any, list[Needed]] = {}
        limits: dict[Any, int] = {}
        for one in needed:
            key = one.alike()
            pack = open_packs.get(key)
            limit = limits.setdefault(key, _FIRST)
            held = sum(other.bytes_ for other in pack or ())
            if pack is None or held + one.bytes_ > limit:
                if pack is not None:
                    limits[key] = min(2 * limit, PACK_BYTES)
                pack = open_packs[key] = []
                self._packs.append(pack)
            pack.append(one)
        self._number = {
            id(one.weight): number
            for number, pack in enumerate(self._packs)
            for one in pack
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
        number = self._number.get(id(needed.weight))
        if number is None:
            return None
        pack = self._packs[number]
        alone = len(pack) == 1 and needed.bytes_ <= PACK_BYTES
        if alone or pack[0].alike() != needed.alike():
            return None
        graph = tf.compat.v1.get_default_graph()
        if number not in self._sent:
            copies = _sent(pack)
            own = {id(n.weight): c for n, c in zip(pack, copies, strict=True)}
            self._sent[number] = graph, own
        where, left = self._sent[number]
        copies_now = left.get(id(needed.weight))
        if where is not graph or copies_now is None:
            return None
        value = value_of(needed.weight)
        shards = value.shards if isinstance(value, ShardedTensor) else [value]
        if should_record_backprop(shards) and not (
            should_record_backprop(copies_now)
        ):
            return None
        del left[id(needed.weight)]
        return copies_now


_run: contextvars.ContextVar[_Run | None] = contextvars.ContextVar(
    "run", default=None
)


def _sent(pack: Sequence[Needed]) -> list[list[tf.Tensor]]:
    """The copies of each weight of a pack, which is sent."""
    first = pack[0]
    # Each device once, though it may have several parts of a layer.
    devices = list(dict.fromkeys(first.devices))
    values = [value_of(one.weight) for one in pack]
    # Of each holder its parts, as pairs of a weight's and a shard's number.
    held: dict[str, list[tuple[int, int]]] = {}
    tensors = {}
    for k, value in enumerate(values):
        whole = not isinstance(value, ShardedTensor)
        shards = [value] if whole else value.shards
        lies = [first.owner] if whole else value.layout.devices
        for j, (shard, device) in enumerate(zip(shards, lies, strict=True)):
            held.setdefault(device, []).append((k, j))
            tensors[k, j] = shard
    got = _in_pieces(
        {h: [tensors[p] for p in parts] for h, parts in held.items()},
        devices,
        sum(one.bytes_ for one in pack),
        first.wire_dtype,
    )
    by_device = {}
    for device in devices:
        own = held.get(device, [])

        def unpack(
            *given: tf.Tensor,
            far: Any = tuple(got[device]),
            own: Any = own,
            native: bool | None = ops.native_on("ConcatShards", device),
        ) -> list[tf.Tensor]:
            sent = given[: len(given) - len(own)]
            parts = dict(zip(own, given[len(sent) :], strict=True))
            for i, holder in enumerate(far):
                shapes = [tensors[p].shape for p in held[holder]]
                count = len(sent) // len(far)
                found = _unpacked(sent[i * count : (i + 1) * count], shapes)
                parts |= dict(zip(held[holder], found, strict=True))
            shards = [
                [parts[p] for p in sorted(parts) if p[0] == k]
                for k in range(len(values))
            ]
            return [
                join(own, value.layout.axis, None, native)
                if isinstance(value, ShardedTensor)
                else tf.identity(*own)
                for own, value in zip(shards, values, strict=True)
            ]

        by_device[device] = on_device(unpack, device)(
            *(piece for sent in got[device].values() for piece in sent),
            *(tensors[p] for p in own),
        )
    return [
        [by_device[device][k] for device in first.devices]
        for k in range(len(pack))
    ]


def _in_pieces(
    held: Mapping[str, Sequence[tf.Tensor]],
    devices: Sequence[str],
    bytes_: int,
    wire_dtype: str | None,
) -> dict[str, dict[str, list[tf.Tensor]]]:
    """Sends each device what others hold, a piece of each of them in turn.

    Args:
        held: Tensors on each device that holds any.
        devices: Names of the devices that need all of them.
        bytes_: Bytes of all.
        wire_dtype: The dtype in which they travel; None for their own.

    Returns:
        For each device the pieces that it got, by who has sent them.
    """
    count = math.ceil(bytes_ / PACK_BYTES)
    cut = {
        holder: on_device(functools.partial(_packed, count), holder)(*own)
        for holder, own in held.items()
        if {*devices} - {holder}
    }
    got: dict[str, dict[str, list[tf.Tensor]]] = {
        device: {holder: [] for holder in held if holder != device}
        for device in devices
    }
    for number in range(count):
        with in_turn(bytes_ // count) as turn:
            # On a device that is sent nothing, its own piece.
            last = {holder: pieces[number] for holder, pieces in cut.items()}
            for holder, pieces in cut.items():
                others = [device for device in devices if device != holder]
                copies = broadcast(
                    *(pieces[number], others, holder, wire_dtype),
                    turn.after.get(holder),
                )
                for device, copy in zip(others, copies, strict=True):
                    got[device][holder].append(copy)
                    last[device] = copy
            turn.arrived = last
    return got


def _packed(count: int, *parts: tf.Tensor) -> list[tf.Tensor]:
    """The numbers of some tensors in so many pieces, of about one size."""
    flat = concatenated([tf.reshape(part, [-1]) for part in parts], 0)
    ends = [flat.shape[0] * i // count for i in range(count + 1)]
    return list(tf.split(flat, [b - a for a, b in itertools.pairwise(ends)]))


def _unpacked(
    pieces: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape]
) -> list[tf.Tensor]:
    flat = tf.concat(pieces, 0) if len(pieces) > 1 else pieces[0]
    sizes = [math.prod(shape) for shape in shapes]
    return [
        tf.reshape(piece, shape)
        for piece, shape in zip(tf.split(flat, sizes), shapes, strict=True)
    ]
