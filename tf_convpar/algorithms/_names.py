"""Algorithms by name: `"winograd:4"` is one of the family winograd."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any

from tf_convpar.algorithms import _bilinear
from tf_convpar.algorithms import fft
from tf_convpar.algorithms import winograd
from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import PASSES
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._bilinear import Bilinear
from tf_convpar.algorithms._direct import Direct
from tf_convpar.algorithms._gemm import Gemm
from tf_convpar.algorithms._phases import Phases

_DIRECT = Direct()
_GEMM = Gemm()
_TILES: dict[str, Callable[[Geometry], list[tuple[int, ...]]]] = {
    "winograd": winograd.tiles,
    "fft": fft.tiles,
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One algorithm for each pass.

    ```python
    Choice(Bilinear("winograd", (4, 4)), direct, direct)
    ```
    """

    forward: Algorithm
    input_gradient: Algorithm
    kernel_gradient: Algorithm

    @property
    def is_direct(self) -> bool:
        """Whether nothing but TensorFlow's own convolution is used."""
        passes = (self.forward, self.input_gradient, self.kernel_gradient)
        return all(algorithm.name == "direct" for algorithm in passes)


def named(name: str, geometry: Geometry) -> Algorithm:
    """The algorithm of a name.

    ```python
    named("winograd", geometry)  # the tile with the fewest products
    named("winograd:4", geometry)  # tiles of 4 outputs on every axis
    named("fft:10x6", geometry)  # tiles of 10 x 6 outputs
    named("phases:winograd", geometry)  # of strides, or of dilation
    ```

    It is direct where a family has no tile for this geometry.

    Raises:
        ValueError: There is no such algorithm.
    """
    check_name(name)
    if name == "direct":
        return _DIRECT
    if name == "gemm":
        return _GEMM
    kind, _, sizes = name.partition(":")
    if kind == "phases":
        return Phases(sizes, functools.partial(_of_phase, sizes))
    tile = tuple(map(int, sizes.split("x"))) if sizes else None
    return _find(kind, tile, dataclasses.replace(geometry, batch=None))


def _of_phase(name: str, geometry: Geometry) -> Algorithm:
    """The algorithm of a name, or another one for a phase that it refuses."""
    algorithm = named(name, geometry)
    if algorithm.refuses(geometry, FORWARD) is None:
        return algorithm
    return _GEMM if math.prod(geometry.window) == 1 else _DIRECT


@functools.lru_cache(maxsize=4096)
def _find(
    kind: str, tile: tuple[int, ...] | None, geometry: Geometry
) -> Algorithm:
    rank = len(geometry.window)
    if tile is not None:
        return Bilinear(kind, tile * rank if len(tile) == 1 else tile)
    if not geometry.is_dense:
        return _DIRECT
    for best in _TILES[kind](geometry):
        return Bilinear(kind, best)
    return _DIRECT


def check_name(name: Any) -> None:
    """Raises ValueError unless `name` is an algorithm, maybe with a tile."""
    kinds = "|".join(_bilinear.KINDS)
    tile = r"(:[1-9]\d{0,2}(x[1-9]\d{0,2})*)?"
    pattern = rf"direct|gemm|({kinds}){tile}|phases:(direct|{kinds})"
    if not isinstance(name, str) or not re.fullmatch(pattern, name):
        raise ValueError(
            'Expected `algorithm` to be "auto", "direct", "fft", "winograd" '
            'or "gemm"; a tile size may follow a colon: "winograd:4". With '
            'strides or dilation also "phases:winograd". '
            f"Received: {name!r}."
        )


def by_name(name: str, geometry: Geometry) -> Choice:
    """The named algorithm for each pass; direct where it refuses the pass."""
    algorithm = named(name, geometry)
    return Choice(
        *(
            _DIRECT if algorithm.refuses(geometry, which) else algorithm
            for which in PASSES
        )
    )
