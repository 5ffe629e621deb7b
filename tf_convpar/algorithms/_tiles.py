"""Windows of images, and the bilinear passes, in plain TensorFlow ops.

The twin of the compiled ops: the same sums, with dense matrices and all
spectra in memory at once. It serves float64, and where there is no compiled
library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms


def sizes_of(x: tf.Tensor) -> list[Any]:
    """The shape, in plain integers where they are known."""
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
    """Windows of channels-last images, which must hold them all.

    Args:
        x: `(batch, *image, channels)`.
        counts: Windows along each axis.
        sizes: Of a window along each axis.
        steps: From one window to the next.

    Returns:
        `(batch, *counts, *sizes, channels)`.
    """
    rank = len(sizes)
    for axis in range(rank):
        first = tf.range(counts[axis]) * steps[axis]
        places = first[:, None] + tf.range(sizes[axis])
        # Axes before it have become two.
        x = tf.gather(x, places, axis=1 + 2 * axis)
    first_axes = range(1, 2 * rank, 2)
    return tf.transpose(
        x, [0, *first_axes, *(a + 1 for a in first_axes), 2 * rank + 1]
    )


def forward(
    x: tf.Tensor,
    kernel: tf.Tensor,
    transforms: Transforms,
    step: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> tf.Tensor:
    """`A [(G k) * (B x)]`, for images `(batch, *image, channels)`.

    Args:
        x: The images.
        kernel: `(*window, channels, filters)`.
        transforms: B, G and A.
        step: Outputs of a tile along each axis.
        pads: Zeros before and after each axis.
    """
    window = kernel.shape[:-2].as_list()
    channels, filters = sizes_of(kernel)[-2:]
    batch, *image = sizes_of(x)[:-1]
    output = [
        size + before + after - w + 1
        for size, (before, after), w in zip(image, pads, window, strict=True)
    ]
    counts = [-(-size // m) for size, m in zip(output, step, strict=True)]
    products = tf.matmul(
        _image_spectrum(x, transforms.image, window, step, pads, counts),
        tf.reshape(
            _apply(transforms.kernel, kernel),
            [transforms.points, channels, filters],
        ),
    )
    maps = _apply(transforms.maps, products)
    # (*step, batch, *counts, filters) to whole feature maps.
    rank = len(step)
    maps = tf.reshape(maps, [*step, batch, *counts, filters])
    order = [rank]
    for axis in range(rank):
        order += [rank + 1 + axis, axis]
    maps = tf.reshape(
        tf.transpose(maps, [*order, 2 * rank + 1]),
        [
            batch,
            *(n * m for n, m in zip(counts, step, strict=True)),
            filters,
        ],
    )
    return tf.slice(maps, [0] * (rank + 2), [batch, *output, filters])


def kernel_gradient(
    x: tf.Tensor,
    dy: tf.Tensor,
    transforms: Transforms,
    window: Sequence[int],
    step: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> tf.Tensor:
    """`G' [(B x)' (A' dy)]`, `(*window, channels, filters)`."""
    output = sizes_of(dy)[1:-1]
    channels, filters = sizes_of(x)[-1], sizes_of(dy)[-1]
    counts = [-(-size // m) for size, m in zip(output, step, strict=True)]
    missing = [
        (0, n * m - size)
        for n, m, size in zip(counts, step, output, strict=True)
    ]
    dy = tf.pad(dy, [(0, 0), *missing, (0, 0)])
    products = tf.matmul(
        _image_spectrum(x, transforms.image, window, step, pads, counts),
        _spectrum(windows(dy, counts, step, step), transforms.maps.transposed),
        transpose_a=True,
    )
    dk = _apply(transforms.kernel.transposed, products)
    return tf.reshape(dk, [*window, channels, filters])


def _image_spectrum(
    x: tf.Tensor,
    program: Program,
    window: Sequence[int],
    step: Sequence[int],
    pads: Sequence[tuple[int, int]],
    counts: Sequence[Any],
) -> tf.Tensor:
    """`B x` of every tile, `(points, tiles, channels)`."""
    image = sizes_of(x)[1:-1]
    tile = [m + w - 1 for m, w in zip(step, window, strict=True)]
    # As far as the last tile reaches.
    wanted = [
        (before, n * m + w - 1 - size - before)
        for size, (before, _), n, m, w in zip(
            image, pads, counts, step, window, strict=True
        )
    ]
    x = tf.pad(x, [(0, 0), *wanted, (0, 0)])
    return _spectrum(windows(x, counts, tile, step), program)


def _spectrum(tiles: tf.Tensor, program: Program) -> tf.Tensor:
    """Of `(batch, *counts, *sizes, channels)`: `(points, tiles, channels)`."""
    rank = (tiles.shape.rank - 2) // 2
    *places, channels = sizes_of(tiles)
    number = 1
    for size in places[: rank + 1]:
        number *= size
    inner = [*range(rank + 1, 2 * rank + 1)]
    order = [*inner, *range(rank + 1), 2 * rank + 1]
    points = _apply(program, tf.transpose(tiles, order))
    return tf.reshape(points, [program.outputs, number, channels])


def _apply(program: Program, values: tf.Tensor) -> tf.Tensor:
    """The program on leading axes of as many values as it takes."""
    matrix = tf.constant(program.matrix(), values.dtype)
    total = 1
    for size in sizes_of(values):
        total *= size
    return tf.matmul(
        matrix,
        tf.reshape(values, [program.inputs, total // program.inputs]),
    )
