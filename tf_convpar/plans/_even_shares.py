"""Shares of samples with which replicas that wait for one another end at once.

Each is timed with few samples and with many: what counts is what one more
sample takes, and what a step takes however few there are. Who would get less
than a sample is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

# Devices whose speeds differ by less are called equal: noise is as large.
_ALIKE = 0.1
# The part of what a step costs at all that is believed where a replica is to
# be left out for it.
_SURE = 0.5
# The least part of a step of many samples that these are taken to take.
_LEAST = 0.1


def apportioned(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to shares, at least 1, of that sum."""
    exact = np.asarray(shares) / sum(shares) * total
    ends = np.rint(np.cumsum(exact)).astype(int)
    counts = np.maximum(1, np.diff(ends, prepend=0))
    while counts.sum() > total and counts.max() > 1:
        counts[counts.argmax()] -= 1
    return [int(n) for n in counts]


def sizes_to_time(total: int, replicas: int) -> tuple[int, int]:
    """Few samples, and many, beside the equal share of so many in all."""
    return max(1, total // replicas // 2), 2 * total // replicas


def even_shares(
    short: Sequence[Sequence[float]],
    long: Sequence[Sequence[float]],
    total: int,
) -> list[float]:
    """Shares with which steps take equally long.

    ```python
    even_shares([[0.2], [0.4]], [[0.8], [1.6]], 8)  # [0.667, 0.333]
    ```

    Args:
        short: Seconds of each replica's steps of few samples.
        long: Seconds of its steps of many; `sizes_to_time` says how many.
        total: Samples of all replicas' steps.

    Returns:
        Shares, whose sum is 1; equal ones if they differ by a tenth at most.
        0 is for a replica that would end a step of one sample later than the
        others end theirs.
    """
    few, many = sizes_to_time(total, len(short))
    equal = [1 / len(short)] * len(short)
    if many <= few:
        return equal
    costs = []
    for less, more in zip(short, long, strict=True):
        typical = statistics.median(more)
        sample = (typical - statistics.median(less)) / (many - few)
        # Where noise hides what samples take.
        sample = max(sample, _LEAST * typical / many)
        # Others' work makes a step longer, never shorter.
        costs.append((max(0.0, min(less) - few * sample), sample))
    shares = evened(costs, total)
    return equal if min(shares) > (1 - _ALIKE) * max(shares) else shares


def evened(costs: Sequence[tuple[float, float]], total: int) -> list[float]:
    """Shares with which all end at once, without whom one sample takes longer.

    Args:
        costs: Of each the seconds of a step, and of each sample in it.
        total: Samples of all.
    """

    def end(of: list[int]) -> float:
        """When all of these end, i with (end - fixed_i) / sample_i samples."""
        begun = sum(costs[i][0] / costs[i][1] for i in of)
        return (total + begun) / sum(1 / costs[i][1] for i in of)

    left = list(range(len(costs)))
    while len(left) > 1:
        last = max(left, key=lambda i: sum(costs[i]))
        others = [i for i in left if i != last]
        if _SURE * costs[last][0] + costs[last][1] <= end(others):
            break
        left = others
    counts = [0.0] * len(costs)
    for i in left:
        # Who is not surely too slow has a sample.
        counts[i] = max(1.0, (end(left) - costs[i][0]) / costs[i][1])
    return [round(count / sum(counts), 3) for count in counts]
