"""A made-up sample on a device that has none of a small batch.

Of two images three devices have one at most, and many operations refuse empty
tensors, or return them in a wrong shape: oneDNN's convolution, LSTMs, pooling
in three dimensions. So a device without samples computes on one that is made
up, whose results and gradients are left out wherever samples are counted, sent
or joined. How many there are is known on each device, and no message is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import stop_recording
from tf_convpar.placement._cutting import samples
from tf_convpar.placement._primitives import on_device


def counted(
    shards: Sequence[tf.Tensor], devices: Sequence[str]
) -> tuple[Any, ...] | None:
    """The number of samples on each device; None if each is sure to have some.

    Args:
        shards: The samples of each device.
        devices: Names of the devices.

    Returns:
        Numbers, or scalar tensors where they are not known while tracing.
    """
    if all(shard.shape[0] for shard in shards):
        return None
    return tuple(
        on_device(samples, device)(shard)
        if shard.shape[0] is None
        else shard.shape[0]
        for shard, device in zip(shards, devices, strict=True)
    )


def filled(
    shards: Sequence[tf.Tensor], counts: Sequence[Any], devices: Sequence[str]
) -> list[tf.Tensor]:
    """The samples of each device; one that is made up where there are none.

    Args:
        shards: The samples.
        counts: The number of them, as `counted` says.
        devices: Names of the devices.
    """
    return _each(_filled, shards, counts, devices)


def trimmed(
    shards: Sequence[tf.Tensor], counts: Sequence[Any], devices: Sequence[str]
) -> list[tf.Tensor]:
    """Results without those for samples that `filled` has made up.

    Args:
        shards: Results for the samples.
        counts: The number of samples of each device.
        devices: Names of the devices.
    """
    return _each(_trimmed, shards, counts, devices)


def _each(
    run: Callable[..., tf.Tensor],
    shards: Sequence[tf.Tensor],
    counts: Sequence[Any],
    devices: Sequence[str],
) -> list[tf.Tensor]:
    return [
        on_device(functools.partial(run, count=count), device)(shard)
        if isinstance(count, int)
        else on_device(run, device)(shard, count)
        for shard, count, device in zip(shards, counts, devices, strict=True)
    ]


def _made_up(shard: tf.Tensor) -> tf.Tensor:
    """One sample of numbers between 0 and 1, at which functions have slopes.

    A norm has none at zeros, for one, and NaN stays NaN when it is multiplied
    by the gradient of 0 that comes back.
    """
    shape = tf.concat([[1], tf.shape(shard)[1:]], 0)
    if shard.dtype.is_floating:
        numbers = tf.random.stateless_uniform(shape, seed=(1, 2))
        return tf.cast(numbers, shard.dtype)
    # The first row of a table, or what a mask lets pass.
    values = tf.ones if shard.dtype == tf.bool else tf.zeros
    return values(shape, shard.dtype)


def _zeros(shard: tf.Tensor) -> tf.Tensor:
    """One sample of zeros."""
    return tf.zeros(tf.concat([[1], tf.shape(shard)[1:]], 0), shard.dtype)


def _filled(
    shard: tf.Tensor,
    count: Any,
    make_sample: Callable[[tf.Tensor], tf.Tensor] = _made_up,
) -> tf.Tensor:
    if isinstance(count, int):
        return shard if count else make_sample(shard)

    @tf.custom_gradient
    def fill(shard: tf.Tensor, count: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> Any:
            return _trimmed(dy, count), None

        # A tape would trace the branches once more, as functions that are never
        # freed. Tensors that a branch returns unchanged are not copied.
        with stop_recording():
            samples_or_made_up = tf.cond(
                count > 0, lambda: shard, lambda: make_sample(shard)
            )
        return tf.ensure_shape(samples_or_made_up, shard.shape), gradient

    return fill(shard, ops.of_this_graph(count))


def _trimmed(shard: tf.Tensor, count: Any) -> tf.Tensor:
    if isinstance(count, int):
        return shard[:count]

    @tf.custom_gradient
    def trim(shard: tf.Tensor, count: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> Any:
            return _filled(dy, count, _zeros), None

        return shard[:count], gradient

    return trim(shard, ops.of_this_graph(count))
