"""Sends tensors to the devices that need them, by the three primitives.

A tensor lies on the chief or in shards, of channels or of samples. Each device
of a layer needs all of it, or its own channels of it, or its own samples.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.placement._cutting import concatenated
from tf_convpar.placement._cutting import cut
from tf_convpar.placement._cutting import cut_between
from tf_convpar.placement._cutting import join_blocks
from tf_convpar.placement._cutting import samples
from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._layout import SampleLayout
from tf_convpar.placement._moves import Place
from tf_convpar.placement._moves import passes_owner
from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor


def arranged(
    x: tf.Tensor | ShardedTensor, wanted: Place, owner: str, wire_dtype: str
) -> list[tf.Tensor]:
    """Sends a tensor, or parts of it, to the devices of a place.

    ```python
    arranged(x, ("/job:worker/task:0/device:CPU:0",), owner, "float32")
    ```

    Args:
        x: A tensor on `owner`, or shards.
        wanted: Names of devices, each of which gets all of it; or a layout, by
            which each device gets its part; or None for the owner alone.
        owner: The chief's device.
        wire_dtype: The dtype in which it and its gradients travel.

    Returns:
        One tensor per device, on that device.
    """
    if isinstance(wanted, Layout | SampleLayout):
        layout = dataclasses.replace(wanted, wire=wire_dtype)
        return list(in_shards(x, layout).shards)
    return everywhere(x, wanted or (owner,), owner, wire_dtype)


def everywhere(
    x: tf.Tensor | ShardedTensor,
    devices: Sequence[str],
    owner: str,
    wire_dtype: str | None = None,
    after: Mapping[str, tf.Tensor] | None = None,
) -> list[tf.Tensor]:
    """All of a tensor, on each device.

    ```python
    copies = everywhere(x, layout.devices, layout.owner, "bfloat16")
    ```

    A tensor in one piece is sent by the owner. Of shards, each device sends
    its own to all others and joins what it gets: an all-gather that does not
    pass through the chief. Partial gradients return to the device of the
    shard, and are added there.
    Applied to feature maps, this is a split by filters; applied to kernels,
    one by samples.

    Args:
        x: A tensor on `owner`, or shards.
        devices: Names of the devices that need it. A device that is named more
            than once is sent one copy.
        owner: The chief's device.
        wire_dtype: The dtype in which copies and partial gradients travel;
            None for `x`'s own.
        after: For each device that is to wait, a tensor on it that must be
            computed before the device sends anything; None for no wait.

    Returns:
        One tensor per name, on that device, in `x`'s dtype.
    """
    after = after or {}
    unique = list(dict.fromkeys(devices))
    if not isinstance(x, ShardedTensor):
        copies = broadcast(x, unique, owner, wire_dtype, after.get(owner))
    else:
        copies = x.once(
            lambda: _gathered(x, unique, wire_dtype, after),
            (*unique, wire_dtype),
        )
    by_device = dict(zip(unique, copies, strict=True))
    return [by_device[device] for device in devices]


def _gathered(
    x: ShardedTensor,
    devices: Sequence[str],
    wire_dtype: str | None,
    after: Mapping[str, tf.Tensor],
) -> list[tf.Tensor]:
    sent = [
        broadcast(shard, devices, device, wire_dtype, after.get(device))
        for shard, device in zip(
            x.trimmed().shards, x.layout.devices, strict=True
        )
    ]
    layout = x.layout
    if layout.blocks > 1:
        return [
            on_device(lambda *parts: join_blocks(parts, layout), device)(
                *(copies[i] for copies in sent)
            )
            for i, device in enumerate(devices)
        ]
    return [
        _joined_on([copies[i] for copies in sent], device, layout.axis)
        for i, device in enumerate(devices)
    ]


def in_shards(x: tf.Tensor | ShardedTensor, layout: AnyLayout) -> ShardedTensor:
    """Gives each device its own channels, or its own samples, of a tensor.

    ```python
    in_shards(x, layout).shards[1]  # on layout.devices[1]
    ```

    Shards that lie so already stay where they are. A tensor is cut on the
    owner and sent. Shards that lie otherwise are cut where they are, and each
    device gets what it needs directly from the devices that have it. Shards of
    flattened maps (`blocks` above 1) go through the owner instead. A device
    that is left without samples is given one to compute on, which is left out
    when they are sent or joined.

    Args:
        x: A tensor on the layout's owner, or shards.
        layout: Layout that says what each device gets. Its `wire` is the dtype
            in which that and its gradients travel.

    Returns:
        A sharded tensor of that layout.
    """
    if isinstance(x, ShardedTensor):
        if x.layout.matches(layout):
            return x
        if not passes_owner(x.layout, layout):
            shards = x
            return x.once(lambda: _exchanged(shards, layout), layout)
        x = x.joined()
    native = ops.native_on("SplitShards", layout.owner)
    dtypes = [_wire(layout, x, layout.owner, d) for d in layout.devices]

    def pieces(x: tf.Tensor) -> list[tf.Tensor]:
        if isinstance(layout, Layout) and layout.axis in (-1, 1 - x.shape.rank):
            axis = -1 if layout.axis == -1 else 1
            sizes = layout.sizes
            return ops.split_shards(x, sizes, axis, dtypes, native=native)
        return _cast(cut(x, layout), dtypes)

    unpack = functools.partial(tf.cast, dtype=x.dtype)
    return ShardedTensor.laid_out(
        [
            on_device(unpack, device)(piece)
            for piece, device in zip(
                on_device(pieces, layout.owner)(x), layout.devices, strict=True
            )
        ],
        layout,
    )


def _exchanged(x: ShardedTensor, layout: AnyLayout) -> ShardedTensor:
    """Each device sends every other one the part that it has and that needs."""
    x = x.trimmed()
    sent = []
    for shard, device, pieces in zip(
        x.shards, x.layout.devices, _cutters(x, layout), strict=True
    ):
        dtypes = [_wire(layout, x, device, d) for d in layout.devices]

        def run(
            shard: tf.Tensor, pieces: Any = pieces, dtypes: Any = dtypes
        ) -> list[tf.Tensor]:
            return _cast(pieces(shard), dtypes)

        sent.append(on_device(run, device)(shard))
    return ShardedTensor.laid_out(
        [
            _joined_on([row[i] for row in sent], device, x.layout.axis, x.dtype)
            for i, device in enumerate(layout.devices)
        ],
        layout,
    )


def _cutters(
    x: ShardedTensor, layout: AnyLayout
) -> Iterator[Callable[[tf.Tensor], list[tf.Tensor]]]:
    """For each shard, a function that cuts it into a piece for each device."""
    if layout.axis != x.layout.axis:
        for _ in x.shards:
            yield functools.partial(cut, layout=layout)
        return
    if isinstance(layout, SampleLayout):
        counts = [
            on_device(samples, device)(shard)
            if shard.shape[0] is None
            else shard.shape[0]
            for shard, device in zip(x.shards, x.layout.devices, strict=True)
        ]
        wanted_bounds = layout.bounds(sum(counts))
        cut_by = functools.partial(cut_between, axis=0)
    else:
        counts = [shard.shape[layout.axis] for shard in x.shards]
        wanted_bounds = list(itertools.accumulate(layout.sizes, initial=0))
        cut_by = functools.partial(cut_between, axis=layout.axis)
    for begin, end in itertools.pairwise(
        itertools.accumulate(counts, initial=0)
    ):
        shard_bounds = [
            _within(bound, begin, end) - begin for bound in wanted_bounds
        ]
        yield functools.partial(cut_by, bounds=shard_bounds)


def _within(bound: Any, begin: Any, end: Any) -> Any:
    if all(isinstance(n, int) for n in (bound, begin, end)):
        return min(max(bound, begin), end)
    return tf.clip_by_value(bound, begin, end)


def _joined_on(
    parts: Sequence[tf.Tensor], device: str, axis: int, dtype: Any = None
) -> tf.Tensor:
    """Joins parts along a layout's axis, on a device."""
    # A part that is known to be empty is not sent.
    parts = [part for part in parts if part.shape[axis] != 0] or parts[:1]
    native = ops.native_on("ConcatShards", device)

    def run(*parts: tf.Tensor) -> tf.Tensor:
        return join(parts, axis, dtype, native)

    return on_device(run, device)(*parts)


def join(
    parts: Sequence[tf.Tensor], axis: int, dtype: Any, native: bool | None
) -> tf.Tensor:
    """Joins parts on the current device.

    Args:
        parts: Tensors to join; dtypes may differ.
        axis: A layout's axis.
        dtype: Dtype of the result; None for that of the first part.
        native: As for `ops.concat_shards`.
    """
    rank = parts[0].shape.rank
    dtype = dtype or parts[0].dtype
    if dtype.is_floating and rank > 2 and axis in (-1, 1 - rank):
        side = -1 if axis == -1 else 1
        return ops.concat_shards(parts, side, dtype, native=native)
    return concatenated([tf.cast(part, dtype) for part in parts], axis)


def _wire(layout: AnyLayout, x: Any, source: str, target: str) -> tf.DType:
    """The dtype in which a part of `x` goes from one device to another."""
    if source == target or not x.dtype.is_floating:
        return x.dtype
    return tf.as_dtype(layout.wire or x.dtype)


def _cast(
    pieces: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
) -> list[tf.Tensor]:
    return [
        tf.cast(piece, dtype)
        for piece, dtype in zip(pieces, dtypes, strict=True)
    ]
