"""Convolution in the frequency domain, for large windows.

A tile of `N = m + r - 1` pixels, transformed, multiplied by the conjugate of
the kernel's transform and transformed back, gives `m` outputs that no
wrapping has reached (overlap-save). Real tiles have a half spectrum: along
one axis `N` real numbers, the frequencies 0 and (for even N) N/2 being real
and the others complex. As a bilinear algorithm over the reals it is

    F    the real transform on each axis, N x N: cosines and sines,
    S    on several axes: sums and differences that turn products of cosines
         and sines into complex numbers. The frequencies u and v of two axes
         give e^(iu) e^(iv) and e^(iu) e^(-iv), that is C x C = C + C,
    K    a complex product by three real ones (Gauss):
         (a + ib)(c + id) = (p1 - p3) + i (p1 + p2) with
         p1 = (a + b) c, p2 = a (d - c), p3 = b (c + d),

so `B = K_x S F`, `G = K_k S F` of the kernel turned round, and `A` is the
inverse of F and S after K's sums. All are chains of sparse matrices; `factor`
finds the butterflies of the fast transform in F.

Cost of a tile of `m^d` outputs, for one channel and filter: about `1.5 N^d`
products instead of `(m r)^d`. For a window of 7 and tiles of 16 that is 3.8
products an output instead of 49. Spectra are larger than Winograd's by Gauss'
third number. Rounding errors do not grow with N: they are about 5e-7, relative.

Source: M. Mathieu, M. Henaff and Y. LeCun, *Fast Training of Convolutional
Networks through FFTs* (2014), sections 2 and 3; tiles after N. Vasilache et
al., *Fast Convolutional Nets With fbfft* (2015), section 6.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Stage
from tf_convpar.algorithms._stages import Transforms
from tf_convpar.algorithms._stages import along_axes
from tf_convpar.algorithms._tilings import is_even
from tf_convpar.algorithms._tilings import products

# Sizes of tiles, in pixels, whose transforms factor well.
SIZES = (8, 12, 14, 16, 18, 20, 24, 28, 32)
# The most pixels of a tile, over all axes, that the compiled op takes.
MOST_VALUES = 1024


@functools.cache
def transforms(tile: tuple[int, ...], window: tuple[int, ...]) -> Transforms:
    """The transforms for tiles of `tile` outputs.

    Args:
        tile: Number of outputs on each axis.
        window: Size of the kernel on each axis.
    """
    sizes = [m + r - 1 for m, r in zip(tile, window, strict=True)]
    forward = [_real_transform(n) for n in sizes]
    inverse = [_inverse(f)[:m] for f, m in zip(forward, tile, strict=True)]
    # k_j multiplies x_(i + j): the kernel's transform has e^(+iuj).
    turned = [
        f[:, -np.arange(r) % n]
        for f, r, n in zip(forward, window, sizes, strict=True)
    ]
    kinds, mix = _complex_numbers(sizes)
    of_image, of_kernel, of_maps = _gauss(kinds)
    return Transforms(
        image=Program((*along_axes(forward), Stage(of_image @ mix))),
        kernel=Program((*along_axes(turned), Stage(of_kernel @ mix))),
        maps=Program((Stage(_inverse(mix) @ of_maps), *along_axes(inverse))),
    )


def tiles(geometry: Geometry) -> list[tuple[int, ...]]:
    """Tiles for a convolution, those with the fewest products first."""
    if 0 in geometry.output:
        return []
    choices = []
    for window, size in zip(geometry.window, geometry.output, strict=True):
        if window == 1 or size == 1:
            choices.append([1])
            continue
        sizes = {n - window + 1 for n in SIZES if n > window}
        if size is not None:
            # Either one tile holds the whole image, whatever its size, or
            # several tiles of those sizes do.
            enough = [m for m in sizes if m >= size]
            sizes -= set(enough)
            if size + window - 1 <= SIZES[-1]:
                sizes.add(size + (size + window - 1) % 2)
        choices.append(sorted(sizes))
    all_tiles = [
        tile
        for tile in itertools.product(*choices)
        if is_even(tile, geometry)
        and math.prod(map(_pixels, tile, geometry.window)) <= MOST_VALUES
    ]
    return sorted(all_tiles, key=lambda tile: products(tile, geometry))


def _pixels(outputs: int, window: int) -> int:
    return outputs + window - 1


@functools.cache
def _real_transform(n: int) -> np.ndarray:
    """The real transform of `n` values, as an orthogonal matrix.

    Its rows are frequency 0, then the real and the imaginary part of each
    frequency 1, 2, ..., and last, for even `n`, frequency n/2.
    """
    # Exact zeros and ones where angles are multiples of a quarter turn.
    angle = np.arange(n)
    rows: list[np.ndarray] = [np.ones(n)]
    for u in range(1, (n + 1) // 2):
        turns = (u * angle) % n / n * 2 * np.pi
        rows += [np.cos(turns), -np.sin(turns)]
    if n % 2 == 0:
        rows.append((-1.0) ** angle)
    matrix = np.array(rows)
    matrix[np.abs(matrix) < 1e-12] = 0
    return matrix


def _inverse(matrix: np.ndarray) -> np.ndarray:
    # Rows are orthogonal, so the inverse is the transpose, scaled.
    inverse = matrix.T / (matrix**2).sum(axis=1)
    return np.asarray(inverse)


def _complex_numbers(
    sizes: Sequence[int],
) -> tuple[list[bool], np.ndarray]:
    """The numbers that a spectrum over several axes consists of.

    Returns:
        Whether each number is complex, in order; and the orthogonal matrix
        from products of real transforms to the real and imaginary parts of
        the numbers, with two rows for a complex number.
    """
    kinds, mix = [False], np.ones((1, 1))
    for n in sizes:
        axis_kinds = [False] + [True] * ((n - 1) // 2) + [False] * (n % 2 == 0)
        kinds, mix = _combine(kinds, mix, axis_kinds, n)
    return kinds, mix


def _combine(
    kinds: list[bool], mix: np.ndarray, axis_kinds: list[bool], n: int
) -> tuple[list[bool], np.ndarray]:
    result, rows = [], []
    for i, left in zip(_starts(kinds), kinds, strict=True):
        for j, right in zip(_starts(axis_kinds), axis_kinds, strict=True):

            def unit(a: int, b: int, i: int = i, j: int = j) -> np.ndarray:
                e = np.zeros(n)
                e[j + b] = 1
                return np.kron(mix[i + a], e)

            if left and right:
                rows += [
                    unit(0, 0) - unit(1, 1),
                    unit(0, 1) + unit(1, 0),
                    unit(0, 0) + unit(1, 1),
                    unit(1, 0) - unit(0, 1),
                ]
                result += [True, True]
            else:
                rows.append(unit(0, 0))
                if left or right:
                    rows.append(unit(1, 0) if left else unit(0, 1))
                result.append(left or right)
    return result, np.array(rows)


def _starts(kinds: list[bool]) -> list[int]:
    """Index of the first row of each number."""
    widths = [1 + is_complex for is_complex in kinds]
    return [sum(widths[:i]) for i in range(len(kinds))]


def _gauss(
    kinds: list[bool],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`K` for the image, `K` for the kernel, and the sums of products.

    A complex number, which is a pair of values, takes three products.
    """
    inputs = sum(1 + c for c in kinds)
    points = sum(1 + 2 * c for c in kinds)
    image = np.zeros((points, inputs))
    kernel = np.zeros((points, inputs))
    maps = np.zeros((inputs, points))
    i = p = 0
    for is_complex in kinds:
        if is_complex:
            image[p : p + 3, i : i + 2] = [[1, 1], [1, 0], [0, 1]]
            kernel[p : p + 3, i : i + 2] = [[1, 0], [-1, 1], [1, 1]]
            maps[i : i + 2, p : p + 3] = [[1, 0, -1], [1, 1, 0]]
            i, p = i + 2, p + 3
        else:
            image[p, i] = kernel[p, i] = maps[i, p] = 1
            i, p = i + 1, p + 1
    return image, kernel, maps
