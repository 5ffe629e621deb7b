"""Shares of work: one number per device, checked, and as whole numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any


def check_shares(argument: str, shares: Any) -> tuple[int | float, ...] | None:
    """Checks shares, one number per device, and returns them as plain numbers.

    ```python
    check_shares("shards", [3, 1])  # (3, 1)
    ```

    Args:
        argument: Name of the user's argument, for errors.
        shares: The numbers; None stands for equal ones, and is returned.

    Raises:
        ValueError: They are not numbers, or one is negative or not finite, or
            all are 0.
    """
    if shares is None:
        return None
    if not isinstance(shares, Sequence) or isinstance(shares, str):
        shares = list(shares) if hasattr(shares, "__iter__") else [shares]
    good = all(
        isinstance(s, numbers.Real)
        and not isinstance(s, bool)
        and math.isfinite(s)
        and float(s) >= 0
        for s in shares
    )
    if not good or not shares or not sum(shares):
        raise ValueError(
            f"Expected `{argument}` to be one number per device, none negative "
            "and not all 0: kernel counts such as (300, 200), or weights such "
            f"as (3, 2) or (2.5, 1.0). Received: {argument}={shares!r}."
        )
    return tuple(
        int(s) if isinstance(s, numbers.Integral) else float(s) for s in shares
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
