"""Convolutions in groups, of which a device may have a part.

TensorFlow has no gradient of a grouped convolution on a CPU, and Keras turns to
XLA there, which cannot follow a device scope. Groups of one channel, as in
ConvNeXt, are a depthwise convolution, of which TensorFlow has all gradients;
of others each is a convolution of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

Run = Callable[[tf.Tensor, tf.Tensor, "tf.Tensor | None"], tf.Tensor]


def by_group(
    run: Run,
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor | None,
    per_group: int,
    first: int,
    axis: int,
) -> tf.Tensor:
    """A range of filters, one convolution for each group that it touches.

    Args:
        run: One of them, of the group's channels and filters.
        x: All channels.
        kernel: `(*window, channels of a group, width)`.
        bias: Of these filters, or None.
        per_group: Filters of a whole group.
        first: Filter of the range.
        axis: Of the channels.
    """
    width, channels = kernel.shape[-1], kernel.shape[-2]
    maps = []
    for group in range(first // per_group, -(-(first + width) // per_group)):
        begin = max(group * per_group - first, 0)
        end = min((group + 1) * per_group - first, width)
        own = channels_of(x, group * channels, channels, axis)
        part = None if bias is None else bias[begin:end]
        maps.append(run(own, kernel[..., begin:end], part))
    return tf.concat(maps, axis)


def is_depthwise(
    kernel: tf.Tensor,
    per_group: int,
    first: int,
    strides: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Whether a range is whole groups of one channel, which TensorFlow takes.

    It has depthwise convolutions of one and two dimensions, strides that are
    alike, and dilation without strides.
    """
    window, (channels, width) = kernel.shape[:-2], kernel.shape[-2:]
    whole = first % per_group == 0 and width % per_group == 0
    able = len(window) <= 2 and len(set(strides)) == 1
    able = able and (max(strides) == 1 or max(dilation) == 1)
    return bool(channels == 1 and whole and able)


def depthwise(
    x: tf.Tensor,
    kernel: tf.Tensor,
    per_group: int,
    first: int,
    axis: int,
    **kwargs: object,
) -> tf.Tensor:
    """The same in one operation, where `is_depthwise` says so."""
    width = kernel.shape[-1]
    count = width // per_group
    own = channels_of(x, first // per_group, count, axis)
    kernel = tf.reshape(kernel, [*kernel.shape[:-2], count, per_group])
    return depthwise_conv(own, kernel, **kwargs)


def depthwise_conv(
    x: tf.Tensor, kernel: tf.Tensor, **kwargs: object
) -> tf.Tensor:
    """As of `keras.ops`, with a gradient for the kernel of no samples too.

    TensorFlow's leaves that one as it finds the memory; devices that share a
    small batch may have none of it.
    """
    if not x.shape[0]:
        kernel = _learning(kernel, tf.shape(x)[0] > 0)
    return keras.ops.depthwise_conv(x, kernel, **kwargs)


def _learning(kernel: tf.Tensor, learns: tf.Tensor) -> tf.Tensor:
    """The same, its gradient 0 unless it learns."""

    @tf.custom_gradient
    def same(kernel: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.where(learns, dy, tf.zeros_like(dy))

        return tf.identity(kernel), gradient

    return same(kernel)


def channels_of(x: tf.Tensor, first: int, count: int, axis: int) -> tf.Tensor:
    """Some channels."""
    begin, size = [0] * x.shape.rank, [-1] * x.shape.rank
    begin[axis], size[axis] = first, count
    return tf.slice(x, begin, size)
