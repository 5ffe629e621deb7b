"""Cuts a tensor as a layout says, and joins its shards again."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import SampleLayout
from tf_convpar.placement._primitives import concat_shards
from tf_convpar.placement._primitives import on_device


def merge(shards: Sequence[tf.Tensor], layout: AnyLayout) -> tf.Tensor:
    """Joins shards on the owner; each gets its gradient on its own device."""
    dtype = shards[0].dtype
    packed = [
        on_device(
            functools.partial(_narrowed, dtype=_wire(layout, dtype)), device
        )(shard)
        if device != layout.owner
        else shard
        for shard, device in zip(shards, layout.devices, strict=True)
    ]
    rank = shards[0].shape.rank
    if layout.blocks == 1 and rank > 2 and layout.axis in (-1, 1 - rank):
        axis = -1 if layout.axis == -1 else 1
        if dtype.is_floating:
            return concat_shards(packed, layout.owner, axis, dtype)

    def join(*shards: tf.Tensor) -> tf.Tensor:
        return join_blocks([tf.cast(s, dtype) for s in shards], layout)

    return on_device(join, layout.owner)(*packed)


def join_blocks(shards: Sequence[tf.Tensor], layout: AnyLayout) -> tf.Tensor:
    """Joins shards on the current device; those of flattened maps by pixels."""
    axis = layout.axis % shards[0].shape.rank
    parts = [_in_blocks(shard, axis, layout) for shard in shards]
    merged = concatenated(parts, axis + (layout.blocks > 1))
    return _flat(merged, axis, layout)


def split(value: Any, layout: AnyLayout) -> list[tf.Tensor]:
    """Cuts a merged value on the owner, one piece per shard."""
    run = on_device(functools.partial(cut, layout=layout), layout.owner)
    return list(run(tf.convert_to_tensor(value)))


def cut(value: tf.Tensor, layout: AnyLayout) -> list[tf.Tensor]:
    """Cuts a merged value on the current device, one piece per shard."""
    if isinstance(layout, SampleLayout):
        return cut_between(value, layout.bounds(samples(value)), 0)
    axis = layout.axis + value.shape.rank
    inner = axis + (layout.blocks > 1)
    pieces = tf.split(_in_blocks(value, axis, layout), layout.sizes, inner)
    return [_flat(piece, axis, layout) for piece in pieces]


def cut_between(
    value: tf.Tensor, bounds: Sequence[Any], axis: int
) -> list[tf.Tensor]:
    """The pieces of a value between bounds, numbers or scalar tensors."""
    sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
    if not all(isinstance(size, int) for size in sizes):
        sizes = tf.stack([tf.cast(size, tf.int64) for size in sizes])
    return list(tf.split(value, sizes, axis=axis, num=len(bounds) - 1))


def concatenated(parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Concatenates as `tf.concat` does, with a gradient that one op cuts."""
    sizes = [part.shape[axis] for part in parts]

    @tf.custom_gradient
    def run(*parts: tf.Tensor) -> Any:
        return tf.concat(parts, axis), lambda dy: tf.split(dy, sizes, axis)

    if len(parts) == 1 or None in sizes or not parts[0].dtype.is_floating:
        return tf.concat(parts, axis)
    result: tf.Tensor = run(*parts)
    return result


def samples(value: tf.Tensor) -> Any:
    """The number of samples: an int if known while tracing, else a tensor."""
    count = value.shape[0]
    return tf.shape(value, tf.int64)[0] if count is None else count


def _narrowed(shard: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(shard, dtype)


def _wire(layout: AnyLayout, dtype: tf.DType) -> tf.DType:
    wire = tf.as_dtype(layout.wire or dtype)
    narrower = dtype.is_floating and wire.size < dtype.size
    return wire if narrower else dtype


def _in_blocks(x: tf.Tensor, axis: int, layout: AnyLayout) -> tf.Tensor:
    """Puts the blocks of the cut axis on an axis of their own before it."""
    if layout.blocks == 1:
        return x
    shape = [-1 if n is None else n for n in x.shape]
    shape[axis : axis + 1] = [layout.blocks, x.shape[axis] // layout.blocks]
    return tf.reshape(x, shape)


def _flat(x: tf.Tensor, axis: int, layout: AnyLayout) -> tf.Tensor:
    """Reverses `_in_blocks`."""
    if layout.blocks == 1:
        return x
    shape = [-1 if n is None else n for n in x.shape]
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return tf.reshape(x, shape)
