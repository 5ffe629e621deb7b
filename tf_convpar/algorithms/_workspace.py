"""How much memory the compiled ops take beside arguments and results.

The formulas of `custom_ops/bilinear/passes_impl.h`, for the widest instruction
set: narrower ones round to fewer channels and need somewhat less.
"""

from __future__ import annotations

import tensorflow as tf

from tf_convpar import cores
from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms

# Floats of a vector, filters of a panel, rows of a product in registers.
LANES = 16
PANEL = 2 * LANES
ROWS = 14
# Floats that a core keeps close, and those of its nearest and farthest caches
# that a part of the kernels' spectrum and the spectra of tiles may fill.
CACHE = 320 << 10
NEAR = 160 << 10
FAR = 3 << 20
# Channels at a time where the sums over them stay close.
SOME = 64
# Floats of a kernels' spectrum that is made as a whole.
SMALL = 1 << 20
# What the ops' memory is counted in.
PAGE = 2 << 20


def threads() -> int:
    """How many TensorFlow gives to one op on this machine's CPU."""
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    return int(asked) if asked else len(cores.usable())


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
    row, width = _row(channels), _round_up(filters, PANEL)
    points = transforms.points
    block = _block(points * (row + width), tiles, 3 * ROWS, 32 * ROWS)
    of_kernel = _scratch(transforms.kernel)
    of_tiles = _scratch(transforms.image, transforms.maps)
    if _by_parts(points, tiles, block, channels, filters):
        depth = _part(channels, NEAR // (points * PANEL))
        own = points * (_plane(depth, PANEL) + _plane(tiles, PANEL))
        own += max(of_kernel, of_tiles)
        return _pages(points * _plane(tiles, row) + threads() * own)
    fit = CACHE // (points * (SOME + width)) // ROWS * ROWS
    if (
        points * block * (row + width) > CACHE
        and fit >= 2 * ROWS
        and channels >= 2 * SOME
    ):
        block, row = min(fit, tiles), SOME
    own = points * (_plane(block, row) + _plane(block, width)) + of_tiles
    spectrum = points * _plane(width // PANEL * channels, PANEL)
    return _pages(threads() * max(own, of_kernel) + spectrum)


def kernel_gradient_bytes(
    transforms: Transforms, channels: int, filters: int, tiles: int
) -> int:
    """Of `BilinearKernelGradient`, whose threads share all or nothing."""
    row, width = _row(channels), _round_up(filters, PANEL)
    points = transforms.points
    programs = (transforms.image, transforms.maps, transforms.kernel)
    if (
        points * tiles * row <= FAR
        and points * tiles * width > FAR
        and width // PANEL >= threads()
    ):
        is_near = points * channels * PANEL <= NEAR
        fit = max(3 * ROWS, NEAR // (points * PANEL))
        some = _part(tiles, fit) if is_near else tiles
        own = points * (_plane(some, PANEL) + _plane(channels, PANEL))
        own += _scratch(*programs)
        return _pages(points * _plane(tiles, row) + threads() * own)
    block = _block(points * (row + width), tiles, 8 * ROWS, 24 * ROWS)
    of_tiles = points * (_plane(block, row) + _plane(block, width))
    of_kernel = points * _plane(channels, width)
    if _by_parts(points, tiles, block, channels, filters):
        each = -(-channels // threads())
        rows = _part(each, FAR // (points * width))
        of_kernel = threads() * points * _plane(rows, width)
    elif threads() > 1 and of_kernel <= FAR // threads():
        of_tiles *= threads()
        of_kernel *= threads()
    own = block * ROWS + 2 * LANES + _scratch(*programs)
    return _pages(of_tiles + of_kernel + threads() * own)


def _by_parts(
    points: int, tiles: int, block: int, channels: int, filters: int
) -> bool:
    """Whether the kernels' spectrum is made and used a part at a time."""
    return (
        tiles <= block
        and points * tiles * _row(channels) <= FAR
        and points * channels * filters > SMALL
    )


def _part(whole: int, fit: int) -> int:
    """Equal parts of at most `fit`."""
    return -(-whole // -(-whole // max(fit, 1)))


def _row(width: int) -> int:
    return _round_up(width, LANES) + (LANES if width % 128 == 0 else 0)


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
