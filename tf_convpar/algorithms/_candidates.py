"""Which algorithms are worth measuring: rules, costs and limits."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from tf_convpar.algorithms import _fft
from tf_convpar.algorithms import _measure
from tf_convpar.algorithms import _winograd
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import Bilinear
from tf_convpar.algorithms._cache import Candidate
from tf_convpar.algorithms._passes import named

WORKSPACE = "TF_CONVPAR_WORKSPACE_MIB"
# What a candidate may take of direct's multiplications, and how far it may
# be from float64.
MOST_MULTIPLICATIONS = 0.8
LARGEST_ERROR = 1e-4
# Tiles of a kind that are measured.
_PER_KIND = 3
# What it takes to write and read a number of the workspace that caches do not
# hold, in multiplications: some 20 GB/s against 100 billion a second.
_MULTIPLICATIONS_PER_FLOAT = 40
_CACHED_FLOATS = 1 << 19
# A candidate whose cost is further from the cheapest has not won yet.
_FAR = 2
# About 0.1 ms of one core: the dispatch of several ops would cost as much.
_SMALLEST = 10_000_000


def workspace_cap() -> int:
    """Bytes that a candidate may use beside arguments and result.

    Raises:
        ValueError: `TF_CONVPAR_WORKSPACE_MIB` is no number of MiB.
    """
    text = os.environ.get(WORKSPACE) or "2048"
    if not text.isdecimal():
        raise ValueError(
            f"Expected {WORKSPACE} to be a whole number of MiB. Received: "
            f"{text!r}."
        )
    return int(text) * 2**20


def rule(geometry: Geometry, device: str | None) -> str | None:
    """Why it is direct without measuring; None if that is open."""
    if device is None:
        return "cuDNN chooses on a GPU"
    if None in geometry.image:
        return "the image's size is unknown"
    if not geometry.is_dense and not _gemm_may_pay(geometry):
        return "strides or dilation"
    if geometry.multiplications < _SMALLEST:
        return "too small to gain"
    return None


def candidates(geometry: Geometry, which: str) -> list[Algorithm]:
    """Algorithms that may beat direct, the cheapest of each kind first."""
    found = []
    gemm = named("gemm", geometry)
    if _gemm_may_pay(geometry) and gemm.refuses(geometry, which) is None:
        found.append(gemm)
    if not geometry.is_dense:
        return found
    kinds: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("winograd", _winograd.tiles),
        ("fft", _fft.tiles),
    )
    cheapest = []
    for kind, tiles in kinds:
        costs = []
        for tile in tiles(geometry):
            algorithm = Bilinear(kind, tile)
            if algorithm.refuses(geometry, which) is None:
                costs.append((_cost(algorithm, geometry, which), algorithm))
        cheapest += sorted(costs, key=_first)[:_PER_KIND]
    most = min(
        MOST_MULTIPLICATIONS * geometry.multiplications,
        _FAR * min((cost for cost, _ in cheapest), default=0),
    )
    return found + [algorithm for cost, algorithm in cheapest if cost <= most]


_first = operator.itemgetter(0)


def _cost(algorithm: Algorithm, geometry: Geometry, which: str) -> int:
    """Multiplications that would take as long."""
    floats = algorithm.workspace(geometry, which) // 4 - _CACHED_FLOATS
    return algorithm.multiplications(
        geometry, which
    ) + _MULTIPLICATIONS_PER_FLOAT * max(floats, 0)


def _gemm_may_pay(geometry: Geometry) -> bool:
    """Whether a matrix of patches may beat direct's loops.

    It saves no multiplication: there is something to gain only where the
    patches are the image itself, or where direct has too few channels or
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
    """Candidates, of which those that may not be chosen are dropped."""
    cap = workspace_cap()
    found = []
    for algorithm in algorithms:
        workspace = algorithm.workspace(geometry, which)
        dropped = None
        if workspace > cap and algorithm is not algorithms[0]:
            dropped = f"workspace over {cap // 2**20} MiB"
        found.append(
            Candidate(
                algorithm.name,
                algorithm.multiplications(geometry, which),
                workspace,
                dropped=dropped,
            )
        )
    within = [i for i, c in enumerate(found) if c.dropped is None]
    if len(within) == 1:
        return found
    errors = _measure.relative_errors(
        [algorithms[i] for i in within], geometry, which, device
    )
    for i, error in zip(within, errors, strict=True):
        if isinstance(error, str):
            found[i] = dataclasses.replace(found[i], dropped=error)
            continue
        # A comparison that NaN fails.
        accurate = i == 0 or error <= LARGEST_ERROR
        found[i] = dataclasses.replace(
            found[i],
            error=error,
            dropped=None if accurate else f"error over {LARGEST_ERROR:g}",
        )
    return found
