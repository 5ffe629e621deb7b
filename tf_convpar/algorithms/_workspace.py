"""How much memory the compiled ops take beside arguments and results.

The formulas of `custom_ops/bilinear/passes_impl.h`, for the widest instruction
set: narrower ones round to fewer channels and need somewhat less.
"""

from __future__ import annotations

import os

import tensorflow as tf

from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms

# Floats of a vector, filters of a panel, rows of a product in registers.
LANES = 16
PANEL = 2 * LANES
ROWS = 14
# Floats that a core keeps close.
CACHE = 320 << 10
# What the ops' memory is counted in.
PAGE = 2 << 20


def threads() -> int:
    """How many TensorFlow gives to one op on this machine's CPU."""
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    if asked:
        return int(asked)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not on every system.
        return os.cpu_count() or 1


def forward_bytes(
    transforms: Transforms, channels: int, filters: int, tiles: int
) -> int:
    """Of `BilinearForward`, whose spectra of tiles each thread has its own of.

    Args:
        transforms: Of the algorithm.
        channels: Of what is transformed: the feature maps' in the pass of the
            input's gradient.
        filters: Of the result.
        tiles: Of all images.
    """
    padded, width = _round_up(channels, LANES), _round_up(filters, PANEL)
    points = transforms.points
    block = _block(points * (padded + width), tiles, 3 * ROWS, 32 * ROWS)
    own = points * (_plane(block, padded) + _plane(block, width))
    own += _scratch(transforms.image, transforms.maps)
    of_kernel = _scratch(transforms.kernel)
    spectrum = points * _plane(width // PANEL * channels, PANEL)
    return _pages(threads() * max(own, of_kernel) + spectrum)


def kernel_gradient_bytes(
    transforms: Transforms, channels: int, filters: int, tiles: int
) -> int:
    """Of `BilinearKernelGradient`, whose spectra all threads share."""
    padded, width = _round_up(channels, LANES), _round_up(filters, PANEL)
    points = transforms.points
    block = _block(points * (padded + width), tiles, 8 * ROWS, 24 * ROWS)
    shared = points * (
        _plane(block, padded) + _plane(block, width) + _plane(channels, width)
    )
    own = (
        block * ROWS
        + 2 * LANES
        + _scratch(transforms.image, transforms.maps, transforms.kernel)
    )
    return _pages(shared + threads() * own)


def _block(floats_per_tile: int, tiles: int, enough: int, many: int) -> int:
    """Tiles that are transformed before they are multiplied."""
    fit = CACHE // max(floats_per_tile, 1)
    if fit < enough:
        fit = many
    fit = min(fit, many) // ROWS * ROWS
    return min(max(fit, ROWS), tiles)


def _plane(tiles: int, width: int) -> int:
    return _round_up(tiles * width, 32) + 16


def _scratch(*programs: Program) -> int:
    """Three buffers, each of some vectors of the largest stage's values."""
    sizes = []
    for program in programs:
        largest = max(
            stage.outer * stage.inner * max(stage.matrix.shape)
            for stage in program.stages
        )
        vectors = min(4, max(1, 2048 // largest))
        sizes.append(3 * LANES * vectors * largest)
    return max(sizes)


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def _pages(floats: int) -> int:
    return _round_up(4 * floats, PAGE)
