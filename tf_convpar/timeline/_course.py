"""The course of a whole `fit`: its step times and events.

A trace is of a few steps. What callbacks change (`Rebalance`, `Elastic`)
happens at any time, so it is noted here, and `Timeline` draws it beside the
steps. Times are seconds by this process' clock (`time.time`), as those of
traces are.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import TypeVar

# Rows of events: what changed, and copies of the model, of which there may be
# so many that they must not push out the others.
CHANGES, COPIES = "changes", "copies"
_MOST_EVENTS = 1000
# Entries for the steps of a `fit`, after which an entry is of twice as many.
_MOST_STEPS = 2000


@dataclasses.dataclass(frozen=True)
class Event:
    """An event between the steps of a `fit`, or in one.

    Attributes:
        text: What happened, in a few words.
        start_s: Time when it began, in seconds.
        end_s: Time when it ended.
        row: `CHANGES` or `COPIES`.
    """

    text: str
    start_s: float
    end_s: float
    row: str = CHANGES


@dataclasses.dataclass(frozen=True)
class Steps:
    """One step of a `fit`, or several that follow one another.

    Attributes:
        start_s: Time when the first began, in seconds.
        end_s: Time when the last ended.
        count: Number of steps.
        each_s: Mean seconds of a step.
    """

    start_s: float
    end_s: float
    count: int
    each_s: float

    def and_(self, later: Steps) -> Steps:
        """These steps and later ones as one entry."""
        count = self.count + later.count
        total_s = self.count * self.each_s + later.count * later.each_s
        return Steps(self.start_s, later.end_s, count, total_s / count)


@dataclasses.dataclass(frozen=True)
class Course:
    """The course of a `fit`.

    Attributes:
        steps: All its steps, in order.
        events: Events meanwhile, in the order of their start.
    """

    steps: Sequence[Steps]
    events: Sequence[Event]

    def later(self, by_s: float) -> Course:
        """The same course, shifted by `by_s` seconds."""
        return Course(
            [_later(entry, by_s) for entry in self.steps],
            [_later(event, by_s) for event in self.events],
        )


class Counted:
    """Steps of a `fit` as they come, in a bounded number of entries.

    ```python
    counted = Counted()
    counted.add(start_s, end_s)
    Course(counted.entries, noted(counted.entries[0].start_s))
    ```
    """

    def __init__(self) -> None:
        self.entries: list[Steps] = []
        self._each = 1

    def add(self, start_s: float, end_s: float) -> None:
        """Adds a step."""
        step = Steps(start_s, end_s, 1, end_s - start_s)
        if self.entries and self.entries[-1].count < self._each:
            self.entries[-1] = self.entries[-1].and_(step)
            return
        if len(self.entries) == _MOST_STEPS:
            pairs = zip(self.entries[::2], self.entries[1::2], strict=True)
            self.entries = [first.and_(second) for first, second in pairs]
            self._each *= 2
        self.entries.append(step)


_T = TypeVar("_T", Event, Steps)
_noted: dict[str, collections.deque[Event]] = {
    row: collections.deque(maxlen=_MOST_EVENTS) for row in (CHANGES, COPIES)
}


def note(text: str, start_s: float | None = None, row: str = CHANGES) -> None:
    """Notes what has just happened, for the timelines of this process.

    ```python
    start_s = time.time()
    move()
    note("moved shares", start_s)
    ```

    Args:
        text: What happened, in a few words.
        start_s: Time when it began, by `time.time`; None if it took no time.
        row: `CHANGES` or `COPIES`.
    """
    now = time.time()
    start_s = now if start_s is None else start_s
    _noted[row].append(Event(text, start_s, now, row))


def noted(since_s: float) -> list[Event]:
    """Events that were noted since a time, in the order of their start."""
    events = [e for row in _noted.values() for e in row if e.end_s >= since_s]
    return sorted(events, key=lambda event: event.start_s)


def _later(what: _T, by_s: float) -> _T:
    return dataclasses.replace(
        what, start_s=what.start_s + by_s, end_s=what.end_s + by_s
    )
