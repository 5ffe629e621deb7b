"""Winograd's minimal filtering: few products, all of them real.

F(m, r) gives `m` outputs of a window of `r` with `n = m + r - 1` products
where the definition takes `m r`. Along one axis, the product of two
polynomials of degrees `m - 1` and `r - 1` is known by its values at `n`
points, one of them infinity (Toom and Cook). With the Vandermonde matrices
`V_m`, `V_r` and `V = V_n` of those points, `s = V^-1 [(V_r k) * (V_m y)]`.
The convolution of neural networks is the transpose of that product,

    y = V_m' [(V_r k) * (V^-T x)],

so that `A = V_m'`, `G = V_r` and `B = V^-T`. Rows of `B` are Lagrange's basis
polynomials. Their denominators are moved to `G`, which leaves small dyadic
numbers in `B` and `A`, exact in binary. On several axes the matrices act on
each in turn.

Cost of a tile of `m^d` outputs, for one channel and filter: `n^d` products
instead of `(m r)^d`. On two axes F(4, 3) takes a fourth of the products, and
F(6, 3) a fifth. The transforms are a few additions for each value. They are
paid once for each channel, not for each channel and filter. The spectra are
`(n/m)^d` times as large as images and feature maps, and `(n/r)^d` times as
large as kernels; only a block of the former is ever in memory.

Rounding errors grow with `n`, because high powers of the points meet low ones,
and with the number of channels. With 400 channels in float32 the relative error
of F(4, 3) is about 3e-6, that of nine points 2e-5, and that of ten about 1e-4,
which is why there are no tiles of ten.

Source: A. Lavin and S. Gray, *Fast Algorithms for Convolutional Neural
Networks* (2016), sections 3 and 4; the points after B. Barabasz et al.,
*Error Analysis and Improving the Accuracy of Winograd Convolution for Deep
Neural Networks* (2020), section 6.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._stages import Program
from tf_convpar.algorithms._stages import Transforms
from tf_convpar.algorithms._stages import along_axes
from tf_convpar.algorithms._tilings import is_even
from tf_convpar.algorithms._tilings import products

# Points beside infinity. They are small and dyadic, with small sums and
# differences, and were found by trying some hundreds of sets on random images
# and kernels.
UP_TO_EIGHT = tuple(map(Fraction, "0 1 -1 1/2 -2 -1/2 2".split()))
FOR_NINE = tuple(map(Fraction, "0 1 -1 1/2 -1/2 3/2 -3/2 -3".split()))
LARGEST_TILE = 9
# Numbers of points along an axis that are worth trying: with 5 or 7 not every
# point has its opposite.
TRIED = (4, 6, 8, 9)


@functools.cache
def transforms(tile: tuple[int, ...], window: tuple[int, ...]) -> Transforms:
    """The transforms for tiles of `tile` outputs.

    Args:
        tile: Number of outputs on each axis.
        window: Size of the kernel on each axis.

    Raises:
        ValueError: A tile needs more points than are known to be accurate.
    """
    image, kernel, maps = zip(*map(matrices, tile, window), strict=True)
    return Transforms(
        image=Program(tuple(along_axes(image))),
        kernel=Program(tuple(along_axes(kernel))),
        maps=Program(tuple(along_axes(maps))),
    )


def tiles(geometry: Geometry) -> list[tuple[int, ...]]:
    """Tiles for a convolution, those with the fewest products first."""
    if 0 in geometry.output:
        return []
    choices = []
    for window, size in zip(geometry.window, geometry.output, strict=True):
        largest = LARGEST_TILE - window + 1
        if window == 1 or size == 1:
            largest = 1
        if largest < 1:
            return []
        # No tile larger than the feature maps.
        most = largest if size is None else min(largest, size)
        tried = [n - window + 1 for n in TRIED if 2 <= n - window + 1 <= most]
        choices.append(tried or [most])
    all_tiles = [
        tile for tile in itertools.product(*choices) if is_even(tile, geometry)
    ]
    return sorted(all_tiles, key=lambda tile: products(tile, geometry))


@functools.cache
def matrices(
    outputs: int, window: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`B`, `G` and `A` of F(outputs, window) along one axis."""
    n = outputs + window - 1
    if n > LARGEST_TILE:
        raise ValueError(
            f"Expected outputs + window - 1 <= {LARGEST_TILE}: more points "
            f"lose accuracy. Received: {outputs} outputs, window {window}."
        )
    if outputs == 1 or window == 1:
        # There is nothing to save: this is the definition itself.
        return (
            np.eye(n),
            np.ones((n, window)) if window == 1 else np.eye(n),
            np.eye(n) if window == 1 else np.ones((1, n)),
        )
    points = FOR_NINE if n == LARGEST_TILE else UP_TO_EIGHT[: n - 1]
    image = np.zeros((n, n))
    kernel = np.zeros((n, window))
    maps = np.zeros((outputs, n))
    for i, point in enumerate(points):
        other_points = [p for p in points if p != point]
        denominator = math.prod(
            (point - p for p in other_points), start=Fraction(1)
        )
        image[i, : n - 1] = _polynomial(other_points)
        kernel[i] = [point**j / denominator for j in range(window)]
        maps[:, i] = [point**j for j in range(outputs)]
    # The point at infinity.
    image[-1] = _polynomial(points)
    kernel[-1, -1] = maps[-1, -1] = 1
    return image, kernel, maps


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of all `x - root`, lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        for i, c in enumerate(coefficients):
            shifted[i] -= root * c
        coefficients = shifted
    return coefficients
