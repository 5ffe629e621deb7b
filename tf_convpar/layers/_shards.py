"""What users may write for `shards=`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np


def validate_shards(
    shards: Any, filters: int | None
) -> tuple[int | float, ...] | None:
    """Checks `shards=` against the number of filters, if that is known.

    ```python
    validate_shards((300, 200), 500)  # counts: they sum to 500
    validate_shards((3, 2), 500)  # ratios: 500 divides into 5 parts
    validate_shards((2.5, 1.0), 500)  # weights: rounded to whole kernels
    ```

    Returns:
        A tuple of plain numbers, or None if `shards` is None.

    Raises:
        ValueError: They are no such numbers.
    """
    if shards is None:
        return None
    if not isinstance(shards, Sequence) or isinstance(shards, str):
        shards = list(shards) if hasattr(shards, "__iter__") else [shards]
    values = tuple(
        int(s)
        if isinstance(s, numbers.Integral) and not isinstance(s, bool)
        else s
        for s in shards
    )
    good = all(
        isinstance(s, int | float | np.floating)
        and not isinstance(s, bool)
        and math.isfinite(s)
        and s >= 0
        for s in values
    )
    if not good or not values or not sum(values):
        raise ValueError(
            "Expected `shards` to be one number per device, none negative and "
            "not all 0: kernel counts such as (300, 200), or weights such as "
            f"(3, 2) or (2.5, 1.0). Received: shards={shards!r}."
        )
    if all(isinstance(s, int) for s in values):
        total = int(sum(values))
        if filters and filters % total:
            raise ValueError(
                f"Expected integer `shards` to sum to filters={filters} "
                f"(counts), or to a number that divides {filters} (ratios). "
                f"Received: shards={values}, which sum to {total}. Floats "
                "are weights and are rounded to whole kernels: "
                f"shards={tuple(float(s) for s in values)}."
            )
        return values
    return tuple(float(s) for s in values)


def resolve_shards(
    shards: Sequence[float] | None, filters: int, devices: int
) -> tuple[int, ...]:
    """Kernels per shard, by largest remainder; equal shards for None.

    ```python
    resolve_shards((3, 1), 8, devices=2)  # (6, 2)
    resolve_shards(None, 8, devices=3)  # (3, 3, 2)
    ```
    """
    weights = shards or [1] * devices
    total = math.fsum(weights)
    exact = [filters * w / total for w in weights]
    counts = [math.floor(e) for e in exact]
    by_remainder = sorted(
        range(len(weights)), key=lambda i: (counts[i] - exact[i], i)
    )
    for i in by_remainder[: filters - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
