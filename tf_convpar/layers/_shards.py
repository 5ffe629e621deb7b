"""What users may write for `shards=`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any


def validate_shards(shards: Any) -> tuple[int | float, ...] | None:
    """Checks `shards=`, as plain numbers.

    Returns:
        A tuple of plain numbers, or None if `shards` is None.

    Raises:
        ValueError: They are no such numbers.
    """
    if shards is None:
        return None
    if not isinstance(shards, Sequence) or isinstance(shards, str):
        shards = list(shards) if hasattr(shards, "__iter__") else [shards]
    good = all(
        isinstance(s, numbers.Real)
        and not isinstance(s, bool)
        and math.isfinite(s)
        and float(s) >= 0
        for s in shards
    )
    if not good or not shards or not sum(shards):
        raise ValueError(
            "Expected `shards` to be one number per device, none negative and "
            "not all 0: kernel counts such as (300, 200), or weights such as "
            f"(3, 2) or (2.5, 1.0). Received: shards={shards!r}."
        )
    return tuple(
        int(s) if isinstance(s, numbers.Integral) else float(s) for s in shards
    )


def resolve_shards(
    shards: Sequence[float] | None, filters: int, devices: int
) -> tuple[int, ...]:
    """Kernels per shard, by largest remainder; equal shards for None.

    ```python
    resolve_shards((300, 200), 500, devices=2)  # (300, 200): counts
    resolve_shards((3, 1), 8, devices=2)  # (6, 2): ratios
    resolve_shards((3, 1, 2), 11, devices=3)  # (5, 2, 4): weights
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
