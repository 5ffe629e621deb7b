"""Spans arranged in rows, one for each device, and lanes within a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from tf_convpar.machines import task_of
from tf_convpar.timeline._course import Event
from tf_convpar.timeline._kinds import STEP
from tf_convpar.timeline._spans import Span

_T = TypeVar("_T", Span, Event)


@dataclasses.dataclass(frozen=True)
class DeviceRow:
    """The spans of one device, in lanes.

    Attributes:
        label: Task and device, such as `"worker 0, GPU:1"`.
        lanes: Lanes of spans that do not overlap within a lane. A device of
            one thread has one lane.
    """

    label: str
    lanes: tuple[tuple[Span, ...], ...]


def rows_of(spans: Iterable[Span]) -> list[DeviceRow]:
    """Rows of the operations; the chief is first, then tasks by number.

    ```python
    [row.label for row in rows_of(spans)]  # ["chief, CPU", "worker 0, CPU"]
    ```
    """
    by_device: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda s: s.start_s):
        if span.kind != STEP:
            by_device.setdefault((span.task, span.device), []).append(span)
    return [
        DeviceRow(
            f"{_in_words(task)}, {device}", lanes_of(by_device[task, device])
        )
        for task, device in sorted(by_device, key=lambda key: _order(*key))
    ]


def _in_words(task: str) -> str:
    job, index = task_of(task)
    return job if job == "chief" else f"{job} {index}"


def _order(task: str, device: str) -> tuple[str, int, str]:
    return (*task_of(task), device)


def lanes_of(spans: Iterable[_T]) -> tuple[tuple[_T, ...], ...]:
    """Lanes of spans in order of start; within a lane none overlap."""
    lanes: list[list[_T]] = []
    for span in spans:
        free = (lane for lane in lanes if lane[-1].end_s <= span.start_s)
        lane = next(free, None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return tuple(map(tuple, lanes))
