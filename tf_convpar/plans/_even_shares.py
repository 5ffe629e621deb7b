"""Shares of samples with which all replicas end a step at the same time.

Each replica is timed with few samples and with many, which gives the fixed time
of its step and the time of one more sample. A replica that would get less than
a sample is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

# Devices whose speeds differ by less are called equal: noise is as large.
_ALIKE = 0.1
# Part of the fixed time that is trusted where it leaves a replica out.
_SURE = 0.5
# Least part of a step of many samples that is attributed to the samples.
_LEAST = 0.1


def apportioned(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to shares, at least 1, that sum to total."""
    exact = np.asarray(shares) / sum(shares) * total
    ends = np.rint(np.cumsum(exact)).astype(int)
    counts = np.maximum(1, np.diff(ends, prepend=0))
    while counts.sum() > total and counts.max() > 1:
        counts[counts.argmax()] -= 1
    return [int(n) for n in counts]


def sizes_to_time(total: int, replicas: int) -> tuple[int, int]:
    """Numbers of samples to time: half of an equal share, and twice it."""
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
    """Shares with which replicas end at once, without those that are too slow.

    Args:
        costs: Fixed seconds of each replica's step, and those of a sample.
        total: Samples of all replicas.
    """

    def end(replicas: list[int]) -> float:
        """Time when these end, each with (end - fixed_i) / sample_i samples."""
        begun = sum(costs[i][0] / costs[i][1] for i in replicas)
        return (total + begun) / sum(1 / costs[i][1] for i in replicas)

    left = list(range(len(costs)))
    while len(left) > 1:
        last = max(left, key=lambda i: sum(costs[i]))
        others = [i for i in left if i != last]
        if _SURE * costs[last][0] + costs[last][1] <= end(others):
            break
        left = others
    counts = [0.0] * len(costs)
    for i in left:
        # A replica that is not surely too slow gets a sample.
        counts[i] = max(1.0, (end(left) - costs[i][0]) / costs[i][1])
    return [round(count / sum(counts), 3) for count in counts]
