"""Shares of samples with which all replicas end a step at the same time.

Each replica is timed with few samples and with many, which gives the fixed time
of its step and the time of one more sample. A replica that would get hardly any
is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

# Equal shares stay where a step with them is longer by at most this part: what
# other shares seem to gain is then hardly more than noise.
_ALIKE = 0.1
# Who would get less than this part of an equal share of those left is left out:
# it brings little, and where weights are averaged, what it learned from a
# handful of samples would count as others' does.
_FEWEST = 0.1
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
        Shares, whose sum is 1; equal ones if others make a step shorter by a
        tenth at most. 0 is for a replica that would get less than a tenth of
        an equal share.
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
    longer = _step_s(costs, equal, total) / _step_s(costs, shares, total)
    return equal if longer <= 1 + _ALIKE else shares


def _step_s(
    costs: Sequence[tuple[float, float]], shares: Sequence[float], total: int
) -> float:
    """Seconds of a step of all replicas that have a share."""
    return max(
        fixed + sample * share * total
        for (fixed, sample), share in zip(costs, shares, strict=True)
        if share
    )


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

    def counts(replicas: list[int]) -> list[float]:
        return [(end(replicas) - costs[i][0]) / costs[i][1] for i in replicas]

    left = list(range(len(costs)))
    while min(counts(left)) < _FEWEST * total / len(left):
        left.pop(int(np.argmin(counts(left))))
    shares = [0.0] * len(costs)
    for i, count in zip(left, counts(left), strict=True):
        shares[i] = round(count / total, 3)
    return shares
