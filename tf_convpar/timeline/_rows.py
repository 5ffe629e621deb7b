"""Spans arranged in rows, one for each device, and lanes within a row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from tf_convpar.timeline._kinds import STEP
from tf_convpar.timeline._spans import Span

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")


@dataclasses.dataclass(frozen=True)
class Row:
    """What one device did.

    Attributes:
        label: Such as `"worker 0, GPU:1"`.
        lanes: Spans that do not overlap within a lane: those of a device of
            one thread fill one lane.
    """

    label: str
    lanes: tuple[tuple[Span, ...], ...]


def rows_of(spans: Iterable[Span]) -> list[Row]:
    """Arranges operations; the chief comes first, then tasks by number.

    ```python
    [row.label for row in rows_of(spans)]  # ["chief, CPU", "worker 0, CPU"]
    ```
    """
    found: dict[tuple[str, str], list[Span]] = {}
    for span in sorted(spans, key=lambda s: s.start_s):
        if span.kind != STEP:
            found.setdefault((span.task, span.device), []).append(span)
    return [
        Row(f"{_short(task)}, {device}", _lanes(found[task, device]))
        for task, device in sorted(found, key=lambda key: _order(*key))
    ]


def _short(task: str) -> str:
    match = _TASK.fullmatch(task)
    if match is None:
        return task
    job, index = match.groups()
    return job if job == "chief" else f"{job} {index}"


def _order(task: str, device: str) -> tuple[str, int, str]:
    match = _TASK.fullmatch(task)
    return (match[1], int(match[2]), device) if match else (task, 0, device)


def _lanes(spans: Iterable[Span]) -> tuple[tuple[Span, ...], ...]:
    lanes: list[list[Span]] = []
    for span in spans:
        free = (lane for lane in lanes if lane[-1].end_s <= span.start_s)
        lane = next(free, None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return tuple(map(tuple, lanes))
