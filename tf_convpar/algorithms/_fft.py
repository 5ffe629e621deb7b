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

Cost of a tile of `m^d` outputs, of one channel and filter: about `1.5 N^d`
products, instead of `(m r)^d`. For a window of 7 and tiles of 16 that is 3.8
products an output instead of 49. Spectra are larger than Winograd's by Gauss'
third number; rounding does not grow with N: relative error about 5e-7.

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
from tf_convpar.algorithms._winograd import is_even
from tf_convpar.algorithms._winograd import products

# Tiles of pixels whose transforms factor well.
SIZES = (8, 12, 14, 16, 18, 20, 24, 28, 32)
# What the compiled op takes as one tile, over all axes.
MOST_VALUES = 1024


@functools.cache
def transforms(tile: tuple[int, ...], window: tuple[int, ...]) -> Transforms:
    """The transforms for tiles of `tile` outputs.

    Args:
        tile: Outputs on each axis.
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
    """Tiles for a convolution, those of the fewest products first."""
    choices = []
    for window, size in zip(geometry.window, geometry.output, strict=True):
        if window == 1 or size == 1:
            choices.append([1])
            continue
        found = {n - window + 1 for n in SIZES if n > window}
        if size is not None:
            # The image in one tile, whatever its size, or in equal ones.
            enough = [m for m in found if m >= size]
            found -= set(enough)
            if size + window - 1 <= SIZES[-1]:
                found.add(size + (size + window - 1) % 2)
        choices.append(sorted(found))
    every = [
        tile
        for tile in itertools.product(*choices)
        if is_even(tile, geometry)
        and math.prod(map(_pixels, tile, geometry.window)) <= MOST_VALUES
    ]
    return sorted(every, key=lambda tile: products(tile, geometry))


def _pixels(outputs: int, window: int) -> int:
    return outputs + window - 1


@functools.cache
def _real_transform(n: int) -> np.ndarray:
    """Rows: frequency 0, real and imaginary part of 1, 2, ..., then n/2."""
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
    # Rows are orthogonal: the transpose, scaled.
    inverse = matrix.T / (matrix**2).sum(axis=1)
    return np.asarray(inverse)


def _complex_numbers(
    sizes: Sequence[int],
) -> tuple[list[bool], np.ndarray]:
    """The numbers that a spectrum over several axes consists of.

    Returns:
        For each number, in order, whether it is complex; and the orthogonal
        matrix from products of real transforms to real parts and imaginary
        parts, two rows for a complex number.
    """
    kinds, mix = [False], np.ones((1, 1))
    for n in sizes:
        own = [False] + [True] * ((n - 1) // 2) + [False] * (n % 2 == 0)
        kinds, mix = _combine(kinds, mix, own, n)
    return kinds, mix


def _combine(
    kinds: list[bool], mix: np.ndarray, own: list[bool], n: int
) -> tuple[list[bool], np.ndarray]:
    result, rows = [], []
    for i, left in zip(_starts(kinds), kinds, strict=True):
        for j, right in zip(_starts(own), own, strict=True):

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
    """Where each number's rows begin."""
    widths = [1 + is_complex for is_complex in kinds]
    return [sum(widths[:i]) for i in range(len(kinds))]


def _gauss(
    kinds: list[bool],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`K` of image and of kernel, and its sums: three products for a pair."""
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
