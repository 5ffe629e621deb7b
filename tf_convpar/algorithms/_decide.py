"""Decides who has won a race, and when it may end, by the times of rounds."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.algorithms import race

DIRECT = "direct"
# The share of direct's time that a candidate must save.
MARGIN = 0.08
# A race favours whoever was lucky in it: a second of another program's noise
# may slow direct down by more than the others, to twice the time it takes.
# Winners with more than this share of direct's time were found to be slower
# than direct ten minutes later. So they must win again, after the races of the
# other passes.
CLEAR = 0.65
# After so many rounds it is no luck to have taken at most that share of
# direct's time in all of them.
_CLEAR_ROUNDS = 5
_SURELY_CLEAR = {3: 0.5, _CLEAR_ROUNDS: CLEAR}
# How many times the budget may be spent on a race whose result is in doubt.
_PATIENCE = 3.0


def decide(times: Mapping[str, Sequence[float]], margin: float = MARGIN) -> str:
    """The fastest algorithm that is surely faster than direct, else direct.

    ```python
    decide({"direct": [9, 9, 9], "fft:10": [5, 5, 5]})  # "fft:10"
    decide({"direct": [9, 9, 9], "fft:10": [5, 9, 9]})  # "direct"
    ```

    Args:
        times: Seconds of each algorithm in each round, by the algorithm's name.
            Element i is from round i, so that each time is compared with
            direct's next to it. An algorithm with fewer than three rounds was
            left behind.
        margin: The share of direct's time that must be saved.

    Returns:
        Name of an algorithm. It is another than direct's only where the median
        ratio of its times to direct's is at most 1 - `margin`, and their upper
        quartile is below 1.
    """
    medians = {}
    for name, candidate_times in times.items():
        if name == DIRECT or len(candidate_times) < race.FEWEST_ROUNDS:
            continue
        ratio, quartile = _ratio_and_quartile(candidate_times, times[DIRECT])
        if quartile < 1 and ratio <= 1 - margin:
            medians[name] = race.median(candidate_times)
    return min(medians, key=medians.__getitem__, default=DIRECT)


def budget_factor(times: Sequence[Sequence[float]]) -> float:
    """Multiple of the budget that a race may take, by its times so far.

    The race ends where one algorithm is far ahead of direct, which is the
    first, in every round: others like it would gain little over it; and where
    none has been ahead by the margin in some rounds. The budget is larger while
    one looks faster without being sure, because more rounds may change what
    `decide` returns.
    """
    direct, *rivals = times
    if any(
        len(rival) >= rounds and max(round_ratios(rival, direct)) <= share
        for rival in rivals
        for rounds, share in _SURELY_CLEAR.items()
    ):
        return 0.0
    if len(direct) >= _CLEAR_ROUNDS and not any(
        _looks_faster(rival, direct) for rival in rivals if rival
    ):
        return 0.0
    ratios_and_quartiles = [
        _ratio_and_quartile(rival, direct) for rival in rivals if rival
    ]
    doubt = any(
        ratio <= 1 - MARGIN and quartile >= 1
        for ratio, quartile in ratios_and_quartiles
    )
    return _PATIENCE if doubt else 1.0


def _looks_faster(candidate: Sequence[float], direct: Sequence[float]) -> bool:
    """Whether a candidate may save the margin, by its best rounds.

    On a busy machine most rounds may have been held up; the best were not.
    """
    ratios = sorted(round_ratios(candidate, direct))
    best_ratio = min(min(candidate) / min(direct), ratios[len(ratios) // 4])
    return best_ratio <= 1 - MARGIN


def _ratio_and_quartile(
    candidate: Sequence[float], direct: Sequence[float]
) -> tuple[float, float]:
    """Median and upper quartile of the ratios of times to direct's."""
    ratios = sorted(round_ratios(candidate, direct))
    return race.median(ratios), ratios[3 * len(ratios) // 4]


def round_ratios(
    candidate: Sequence[float], direct: Sequence[float]
) -> list[float]:
    """Ratios of times to direct's in the same rounds."""
    return [a / b for a, b in zip(candidate, direct, strict=False)]
