"""Medians of repeated runs that are steady."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

# Steady samples have quartiles no further apart than this, relative to their
# median. A wider spread says that other programs work on the machine.
WIDE = 0.1
_FEWEST = 5
# Two samples in a row that agree are enough if they take longer than this: what
# would disturb a short sample is over before such a long one.
_LONG_S = 0.1
_MOST_LONG = 5
_MOST = 25
_TRIES = 3
# A card raises its clocks under load, and lowers them again as it gets warm. It
# has settled when runs of so many seconds take as long as those before, within
# this; it is not waited for longer than so many seconds.
_SETTLED = 0.02
_SPELL_S = 0.5
_SETTLE_S = 20.0
# A shorter sample would measure the clock rather than the run, so that several
# runs make one sample.
_SAMPLE_S = 2e-3


@dataclasses.dataclass
class Clock:
    """Times functions one after the other.

    ```python
    clock = Clock()
    seconds = clock.time(lambda: function(x).numpy(), "conv2d, 64 kernels")
    ```

    Attributes:
        budget_s: Seconds for the samples of one function. At least five are
            taken, fewer if each takes long.
        report: Function that is called with the name of what is timed next.
    """

    budget_s: float = 0.15
    report: Callable[[str], None] = lambda name: None

    def time(self, run: Callable[[], Any], name: str) -> float:
        """Seconds of one run: the median of the steadiest try."""
        self.report(name)
        first = seconds_of(run)  # Allocates, wakes threads.
        if first > _LONG_S:
            return _long(run, first)
        tries = []
        for _ in range(_TRIES):
            samples = self._samples(run)
            median = statistics.median(samples)
            low, _, high = statistics.quantiles(samples, n=4)
            tries.append(((high - low) / median, median))
            if tries[-1][0] <= WIDE:
                break
        _, median = min(tries)
        return median

    def _samples(self, run: Callable[[], Any]) -> list[float]:
        once = seconds_of(run)
        repeats = max(1, min(50, int(_SAMPLE_S / max(once, 1e-6))))
        samples = [once] if repeats == 1 else []
        begin = time.perf_counter()
        while len(samples) < _FEWEST or (
            len(samples) < _MOST and time.perf_counter() - begin < self.budget_s
        ):
            samples.append(seconds_of(run, repeats))
        return samples


def _long(run: Callable[[], Any], first: float) -> float:
    """Seconds of the second of two runs in a row that agree.

    If none do, the median of all runs.
    """
    samples = [first]
    while len(samples) < _MOST_LONG:
        samples.append(seconds_of(run))
        before, last = samples[-2:]
        if abs(last - before) / last <= WIDE:
            return last
    return statistics.median(samples)


def settle(run: Callable[[], Any]) -> int:
    """Repeats a run until it takes as long as before; for GPUs.

    ```python
    settle(lambda: function(x).numpy())
    ```

    Returns:
        The number of runs.
    """
    begin = time.perf_counter()
    runs, before = 0, float("inf")
    while time.perf_counter() - begin < _SETTLE_S:
        spell = [seconds_of(run)]
        while sum(spell) < _SPELL_S:
            spell.append(seconds_of(run))
        runs += len(spell)
        now = statistics.median(spell)
        if abs(now - before) <= _SETTLED * now:
            break
        before = now
    return runs


def seconds_of(run: Callable[[], Any], repeats: int = 1) -> float:
    """Seconds of a run: the mean of several, one after the other."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats
