"""Tensors of images and kernels, as several algorithms handle them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def sizes_of(x: tf.Tensor) -> list[Any]:
    """The shape as a list, with plain integers where sizes are known."""
    dynamic = tf.shape(x)
    return [
        dynamic[axis] if size is None else size
        for axis, size in enumerate(x.shape)
    ]


def windows(
    x: tf.Tensor,
    counts: Sequence[Any],
    sizes: Sequence[int],
    steps: Sequence[int],
) -> tf.Tensor:
    """Copies windows out of channels-last images, which must hold them all.

    Args:
        x: Images, `(batch, *image, channels)`.
        counts: Number of windows along each axis.
        sizes: Size of a window along each axis.
        steps: Pixels from one window to the next along each axis.

    Returns:
        The windows, `(batch, *counts, *sizes, channels)`.
    """
    rank = len(sizes)
    for axis in range(rank):
        first = tf.range(counts[axis]) * steps[axis]
        places = first[:, None] + tf.range(sizes[axis])
        # Each axis before this one has become two.
        x = tf.gather(x, places, axis=1 + 2 * axis)
    first_axes = range(1, 2 * rank, 2)
    return tf.transpose(
        x, [0, *first_axes, *(a + 1 for a in first_axes), 2 * rank + 1]
    )


def turn(kernel: tf.Tensor) -> tf.Tensor:
    """Turns a kernel by 180 degrees and exchanges channels and filters."""
    rank = kernel.shape.rank - 2
    turned = tf.reverse(kernel, [*range(rank)])
    return tf.transpose(turned, [*range(rank), rank + 1, rank])


def wide_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype that sums are computed in: at least float32."""
    return tf.float32 if dtype.size < 4 else dtype
