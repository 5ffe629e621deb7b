"""Choosing tiles of outputs that cover an image, for any transform."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tf_convpar.algorithms._algorithm import Geometry


def is_even(tile: Sequence[int], geometry: Geometry) -> bool:
    """Whether axes of equal window and output have equal tiles.

    Unequal tiles on such axes gain nothing.
    """
    alike = zip(geometry.window, geometry.output, strict=True)
    return len(set(zip(alike, tile, strict=True))) == len(
        set(zip(geometry.window, geometry.output, strict=True))
    )


def products(tile: Sequence[int], geometry: Geometry) -> float:
    """Number of products for one channel, one filter and one image.

    An axis of unknown size counts as 100 outputs.
    """
    return math.prod(
        (step + window - 1) * (100 / step if size is None else -(-size // step))
        for step, window, size in zip(
            tile, geometry.window, geometry.output, strict=True
        )
    )
