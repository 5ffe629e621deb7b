"""Shares of work: one number per device, checked, and as whole numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any


def check_shares(argument: str, given: Any) -> tuple[int | float, ...] | None:
    """Checks numbers of which there is one per device; they become plain ones.

    ```python
    check_shares("shards", [3, 1])  # (3, 1)
    ```

    Args:
        argument: Name of the argument that they are given by, for errors.
        given: The numbers; None stands for equal ones, and is returned.

    Raises:
        ValueError: They are not numbers, or one is negative or not finite, or
            all are 0.
    """
    if given is None:
        return None
    if not isinstance(given, Sequence) or isinstance(given, str):
        given = list(given) if hasattr(given, "__iter__") else [given]
    good = all(
        isinstance(s, numbers.Real)
        and not isinstance(s, bool)
        and math.isfinite(s)
        and float(s) >= 0
        for s in given
    )
    if not good or not given or not sum(given):
        raise ValueError(
            f"Expected `{argument}` to be one number per device, none negative "
            "and not all 0: kernel counts such as (300, 200), or weights such "
            f"as (3, 2) or (2.5, 1.0). Received: {argument}={given!r}."
        )
    return tuple(
        int(s) if isinstance(s, numbers.Integral) else float(s) for s in given
    )


def whole_shares(
    shares: Sequence[float] | None,
    total: int,
    devices: int,
    each: bool = False,
) -> tuple[int, ...]:
    """Kernels per device, by largest remainder; equal parts for None.

    ```python
    whole_shares((300, 200), 500, devices=2)  # (300, 200): counts
    whole_shares((3, 1), 8, devices=2)  # (6, 2): ratios
    whole_shares((3, 1, 2), 11, devices=3)  # (5, 2, 4): weights
    whole_shares((9, 1), 4, devices=2)  # (4, 0)
    whole_shares((9, 1), 4, devices=2, each=True)  # (3, 1)
    whole_shares(None, 8, devices=3)  # (3, 3, 2)
    ```

    With `each`, every device with a share gets one at least, where there are as
    many. It comes from the device that has the most.
    """
    weights = shares or [1] * devices
    sum_of_all = math.fsum(weights)
    exact = [total * w / sum_of_all for w in weights]
    counts = [math.floor(e) for e in exact]
    by_remainder = sorted(
        range(len(weights)), key=lambda i: (counts[i] - exact[i], i)
    )
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    if each and total >= sum(w > 0 for w in weights):
        for i, weight in enumerate(weights):
            if weight > 0 and not counts[i]:
                counts[counts.index(max(counts))] -= 1
                counts[i] = 1
    return tuple(counts)
