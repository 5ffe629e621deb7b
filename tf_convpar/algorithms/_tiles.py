"""The bilinear passes in plain TensorFlow ops.

This is the twin of the compiled ops: it computes the same sums, with dense
matrices and all spectra in memory at once. It serves float64, and all dtypes
where there is no compiled library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms
from tf_convpar.algorithms._tensors import sizes_of
from tf_convpar.algorithms._tensors import windows


def forward(
    x: tf.Tensor,
    kernel: tf.Tensor,
    transforms: Transforms,
    step: Sequence[int],
    pads: Sequence[tuple[int, int]],
) -> tf.Tensor:
    """The feature maps `A [(G k) * (B x)]`, `(batch, *output, filters)`.

    Args:
        x: Images, `(batch, *image, channels)`.
        kernel: Kernel, `(*window, channels, filters)`.
        transforms: B, G and A.
        step: Number of outputs of a tile along each axis.
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
    """The kernel's gradient `G' [(B x)' (A' dy)]`.

    Its shape is `(*window, channels, filters)`; see `forward`.
    """
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
    # Zeros as far as the last tile reaches.
    padding = [
        (before, n * m + w - 1 - size - before)
        for size, (before, _), n, m, w in zip(
            image, pads, counts, step, window, strict=True
        )
    ]
    x = tf.pad(x, [(0, 0), *padding, (0, 0)])
    return _spectrum(windows(x, counts, tile, step), program)


def _spectrum(tiles: tf.Tensor, program: Program) -> tf.Tensor:
    """Spectra of tiles, `(points, tiles, channels)`.

    The tiles are `(batch, *counts, *sizes, channels)`.
    """
    rank = (tiles.shape.rank - 2) // 2
    *places, channels = sizes_of(tiles)
    tile_count = 1
    for size in places[: rank + 1]:
        tile_count *= size
    inner = [*range(rank + 1, 2 * rank + 1)]
    order = [*inner, *range(rank + 1), 2 * rank + 1]
    points = _apply(program, tf.transpose(tiles, order))
    return tf.reshape(points, [program.outputs, tile_count, channels])


def _apply(program: Program, values: tf.Tensor) -> tf.Tensor:
    """Applies a program to the leading axes, as many as hold its inputs.

    Returns:
        The program's outputs, and all other axes as one.
    """
    matrix = tf.constant(program.matrix(), values.dtype)
    total = 1
    for size in sizes_of(values):
        total *= size
    return tf.matmul(
        matrix,
        tf.reshape(values, [program.inputs, total // program.inputs]),
    )
