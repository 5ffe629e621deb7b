"""Which algorithms are worth measuring: rules, costs and limits."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from tf_convpar.algorithms import fft
from tf_convpar.algorithms import processor
from tf_convpar.algorithms import race
from tf_convpar.algorithms import winograd
from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import PASSES
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import KINDS
from tf_convpar.algorithms._bilinear import Bilinear
from tf_convpar.algorithms._names import named
from tf_convpar.algorithms.cache import Candidate
from tf_convpar.units import MIB

WORKSPACE = "TF_CONVPAR_WORKSPACE_MIB"
# The largest share of direct's multiplications that a candidate may take, and
# its largest relative error against float64.
MOST_MULTIPLICATIONS = 0.8
LARGEST_ERROR = 1e-4
# The number of tiles of a kind that are measured.
_PER_KIND = 3
# The cost, in multiplications, of writing and reading a float of the workspace
# that caches do not hold: some 20 GB/s against 100 billion multiplications a
# second; and the floats that caches do hold.
_MULTIPLICATIONS_PER_FLOAT = 40
_CACHED_FLOATS = 1 << 19
# How many times as dear as the cheapest a candidate may be. None that was
# dearer has won yet.
_MOST_TIMES_CHEAPEST = 2
# The multiplications of a run, some milliseconds of a core, and the pixels of
# its feature maps that tell which algorithm is fastest, for each thread.
_TELLING_MULTIPLICATIONS = 50_000_000
_TELLING_PIXELS = 1024
# Above so many channels or filters, numbers that are near race as one.
_NARROW = 64
# The fewest multiplications for which algorithms are measured: about 0.1 ms of
# one core. The dispatch of several ops would cost as much.
_SMALLEST = 10_000_000


def workspace_cap() -> int:
    """Bytes that a candidate may take beside its arguments and its result.

    Raises:
        ValueError: `TF_CONVPAR_WORKSPACE_MIB` is not a whole number.
    """
    text = os.environ.get(WORKSPACE) or "2048"
    if not text.isdecimal():
        raise ValueError(
            f"Expected {WORKSPACE} to be a whole number of MiB. Received: "
            f"{text!r}."
        )
    return int(text) * MIB


def rule(geometry: Geometry, device: str | None) -> str | None:
    """Why direct is chosen without measuring; None if measuring decides."""
    if device is None:
        return "cuDNN chooses on a GPU"
    if None in geometry.image:
        return "the image's size is unknown"
    if not geometry.is_dense and not any(
        candidates(geometry, which) for which in PASSES
    ):
        return "strides or dilation"
    if geometry.multiplications < _SMALLEST:
        return "too small to gain"
    return None


def images(geometry: Geometry, threads: int) -> int:
    """Number of images that tell which algorithm is fastest.

    With more images the times of all algorithms grow in proportion. With fewer
    they do not shrink in proportion, because the rows of a matrix product are
    the tiles of all images.

    Args:
        geometry: Shape of the convolution, whose image is known.
        threads: Number of threads of the device; each has its own images.
    """
    one_image = dataclasses.replace(geometry, batch=1)
    pixels = math.prod(n or 1 for n in geometry.output)
    # A shard without filters has no work.
    return threads * max(
        math.ceil(_TELLING_MULTIPLICATIONS / max(one_image.multiplications, 1)),
        math.ceil(_TELLING_PIXELS / max(pixels, 1)),
    )


def width(channels: int) -> int:
    """Rounds a number of channels or filters to one that many layers share.

    Those are 64, 96, 128, 192, 256 and so on. Numbers that fill no vectors, or
    few columns of a product, stay as they are.
    """
    if channels <= _NARROW or channels % 16:
        return channels
    power = 1 << (channels.bit_length() - 1)
    near = (power, power * 3 // 2, power * 2)
    return min(near, key=lambda other: abs(other - channels))


def candidates(geometry: Geometry, which: str) -> list[Algorithm]:
    """Algorithms that may beat direct, the cheapest of each kind first."""
    algorithms = []
    gemm = named("gemm", geometry)
    if _gemm_may_pay(geometry) and gemm.refuses(geometry, which) is None:
        algorithms.append(gemm)
    if not geometry.is_dense:
        return algorithms + _by_phases(geometry, which)
    by_winograd = _cheapest("winograd", winograd.tiles, geometry, which)
    by_fft = _cheapest("fft", fft.tiles, geometry, which)
    if by_winograd and by_fft and by_fft[0][0] > by_winograd[0][0]:
        # Complex products have won only where all others cost more, as with
        # large windows.
        by_fft = []
    cheapest = by_winograd + by_fft
    most = min(
        MOST_MULTIPLICATIONS * geometry.multiplications,
        _MOST_TIMES_CHEAPEST * min((cost for cost, _ in cheapest), default=0),
    )
    return algorithms + [
        algorithm for cost, algorithm in cheapest if cost <= most
    ]


def _by_phases(geometry: Geometry, which: str) -> list[Algorithm]:
    """Algorithms for phases of strides or of dilation that may beat direct.

    With strides forward and the input's gradient took 1.05 to 3.8 times as long
    as direct by it, in windows of 3 to 7 pixels: each phase goes over the
    feature maps once more. The kernel's gradient does not, and has won.
    """
    if max(geometry.strides) > 1 and which != KERNEL_GRADIENT:
        return []
    costs = {}
    for kind in KINDS:
        algorithm = named(f"phases:{kind}", geometry)
        if algorithm.refuses(geometry, which) is None:
            costs[algorithm] = algorithm.multiplications(geometry, which)
    # Fourier tiles where they cost no more than Winograd's, as without phases.
    most = MOST_MULTIPLICATIONS * geometry.multiplications
    most = min(most, next(iter(costs.values()), 0))
    return [algorithm for algorithm, cost in costs.items() if cost <= most]


def _cheapest(
    kind: str, tiles: Callable[..., Any], geometry: Geometry, which: str
) -> list[tuple[int, Algorithm]]:
    """The algorithms of a kind with the lowest costs, lowest first."""
    costs: list[tuple[int, Algorithm]] = []
    for tile in tiles(geometry):
        algorithm = Bilinear(kind, tile)
        if algorithm.refuses(geometry, which) is None:
            costs.append((_cost(algorithm, geometry, which), algorithm))
    return sorted(costs, key=_cost_of_pair)[:_PER_KIND]


_cost_of_pair = operator.itemgetter(0)


def _cost(algorithm: Algorithm, geometry: Geometry, which: str) -> int:
    """Multiplications that would take as long as the pass."""
    floats = algorithm.workspace(geometry, which) // 4 - _CACHED_FLOATS
    return algorithm.multiplications(
        geometry, which
    ) + _MULTIPLICATIONS_PER_FLOAT * max(floats, 0)


def _gemm_may_pay(geometry: Geometry) -> bool:
    """Whether a matrix of patches may beat direct's loops.

    The matrix saves no multiplications. There is something to gain only where
    the patches are the image itself, or where direct has too few channels or
    pixels to fill its vectors and blocks.
    """
    if set(geometry.window) == {1}:
        return set(geometry.dilation) == {1}
    if not geometry.is_dense:
        return False
    pixels = math.prod(n or 1 for n in geometry.output)
    return geometry.channels <= 16 or pixels <= 64


def screened(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[Candidate]:
    """Candidates with their workspace and error, some of them dropped.

    Dropped are those whose workspace or error is too large, and those that
    fail on the device. The first algorithm, direct, stays.
    """
    cap = workspace_cap()
    candidates = []
    computes = processor.processor_of(device)
    for algorithm in algorithms:
        workspace = algorithm.workspace(geometry, which, computes)
        dropped = None
        if workspace > cap and algorithm is not algorithms[0]:
            dropped = f"workspace over {cap // MIB} MiB"
        candidates.append(
            Candidate(
                algorithm.name,
                algorithm.multiplications(geometry, which),
                workspace,
                dropped=dropped,
            )
        )
    kept = [i for i, c in enumerate(candidates) if c.dropped is None]
    if len(kept) == 1:
        return candidates
    errors = _errors([algorithms[i] for i in kept], geometry, which, device)
    for i, error in zip(kept, errors, strict=True):
        if isinstance(error, str):
            candidates[i] = dataclasses.replace(candidates[i], dropped=error)
            continue
        # An error of NaN must fail this comparison.
        accurate = i == 0 or error <= LARGEST_ERROR
        candidates[i] = dataclasses.replace(
            candidates[i],
            error=error,
            dropped=None if accurate else f"error over {LARGEST_ERROR:g}",
        )
    return candidates


# Relative errors that were measured, and the length of the sums; by device,
# algorithm, window, pass and dtype.
_measured: dict[Any, tuple[float, int]] = {}


def _errors(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[float | str]:
    """Relative errors, measured once for geometries with the same windows.

    Rounding errors of longer sums are larger by the root of their length at
    most: of more than half the limit, by that, they are measured again.
    """
    length = _sum_length(geometry, which)
    keys = [
        (device, a.name, geometry.window, which, geometry.dtype)
        for a in algorithms
    ]
    errors: list[float | str | None] = [None] * len(keys)
    for i, key in enumerate(keys):
        if key in _measured:
            error, before = _measured[key]
            longer = error * max(1.0, length / before) ** 0.5
            errors[i] = error if longer <= LARGEST_ERROR / 2 else None
    missing = [i for i, error in enumerate(errors) if error is None]
    if missing:
        # Direct is first: others are compared with it in float64.
        compared = sorted({0, *missing})
        measured = race.relative_errors(
            [algorithms[i] for i in compared], geometry, which, device
        )
        for i, outcome in zip(compared, measured, strict=True):
            errors[i] = outcome
            if not isinstance(outcome, str):
                _measured[keys[i]] = outcome, length
    return [error for error in errors if error is not None]


def _sum_length(geometry: Geometry, which: str) -> int:
    """Count of the products that are summed for a number of the result."""
    window = math.prod(geometry.window)
    if which == FORWARD:
        return window * geometry.channels
    if which == INPUT_GRADIENT:
        return window * geometry.filters
    pixels = math.prod(n or 1 for n in geometry.output)
    return (geometry.batch or 1) * pixels
