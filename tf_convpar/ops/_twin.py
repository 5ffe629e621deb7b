"""The twins of the ops on shards: TensorFlow's own ops, with equal results.

Their errors are the same, too.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _checks
from ._devices import same_device


def concat(
    shards: Sequence[tf.Tensor], axis: int, dtype: tf.DType
) -> tf.Tensor:
    """Joins `shards` along `axis`; see `concat_shards`."""
    _checks.check_concat([shard.shape for shard in shards], axis)

    # The gradient of tf.concat would run on the default device.
    @tf.custom_gradient
    def joined(*shards: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        value = tf.concat([tf.cast(shard, dtype) for shard in shards], axis)
        device = value.device

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            with same_device(device):
                return split_like(upstream, shards, axis, split)

        return value, gradient

    return joined(*shards)


def split(
    value: tf.Tensor,
    sizes: list[int],
    axis: int,
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Cuts `value` along `axis`; see `split_shards`."""
    _checks.check_split(value.shape, sizes, axis)

    @tf.custom_gradient
    def cut(value: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        parts = tf.split(value, sizes, axis)
        shards = [
            tf.cast(part, dtype)
            for part, dtype in zip(parts, dtypes, strict=True)
        ]
        device = parts[0].device

        def gradient(*upstream: tf.Tensor) -> tf.Tensor:
            with same_device(device):
                return concat(upstream, axis, value.dtype)

        return shards, gradient

    return list(cut(value))


def split_like(
    value: tf.Tensor,
    shards: Sequence[tf.Tensor],
    axis: int,
    split: Callable[..., list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Cuts `value` into the widths and dtypes of `shards`, by `split`.

    Where static shapes are known, nothing else of the shards is read. So no
    feature map is kept, or sent anywhere, for its width alone.
    """
    dtypes = [shard.dtype for shard in shards]
    widths = [
        None if shard.shape.rank is None else shard.shape[axis]
        for shard in shards
    ]
    if None not in widths:
        return split(value, widths, axis, dtypes)
    sizes = tf.stack([tf.shape(shard)[axis] for shard in shards])
    parts = tf.split(value, sizes, axis, num=len(shards))
    return [
        tf.cast(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)
    ]
