"""Timelines as Chrome's trace events, which Perfetto opens."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from tf_convpar.timeline._course import CHANGES
from tf_convpar.timeline._course import COPIES
from tf_convpar.timeline._course import Course
from tf_convpar.timeline._course import Event
from tf_convpar.timeline._course import Steps
from tf_convpar.timeline._rows import lanes_of
from tf_convpar.timeline._rows import rows_of
from tf_convpar.timeline._spans import Span


def to_chrome(
    spans: Iterable[Span],
    path: str | os.PathLike[str],
    course: Course | None = None,
) -> None:
    """Writes spans to a JSON file for https://ui.perfetto.dev.

    ```python
    to_chrome(record(cluster.tasks, 1.0).spans, "timeline.json")
    ```

    Each device of each task is shown as a process. Its operations that overlap
    are shown on different threads. So is the `fit`: its steps, a curve of what
    they take, and what happened meanwhile.

    Args:
        spans: Spans of any tasks.
        path: The file to write.
        course: Course of the `fit`, on the time axis of the spans.
    """
    rows = rows_of(spans)
    events: list[dict[str, Any]] = []
    # Viewers take no negative times, and a `fit` begins before its trace.
    begin_s = 0.0
    if course is not None and course.steps:
        begin_s = min(
            0.0,
            course.steps[0].start_s,
            *(event.start_s for event in course.events[:1]),
        )
        events += _course_events(course, len(rows), begin_s)
    for pid, row in enumerate(rows):
        events.append(_named("process_name", row.label, pid))
        for lane, members in enumerate(row.lanes):
            events.extend(
                {
                    "ph": "X",
                    "name": span.name.rpartition(":")[2],
                    "cat": span.kind,
                    "pid": pid,
                    "tid": lane,
                    **_when(span, begin_s),
                    "args": {"operation": span.name},
                }
                for span in members
            )
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    pathlib.Path(path).write_text(text, encoding="utf-8")


def _course_events(
    course: Course, pid: int, begin_s: float
) -> Iterable[dict[str, Any]]:
    yield _named("process_name", "fit", pid)
    sort = _named("process_sort_index", "", pid)
    yield sort | {"args": {"sort_index": -1}}
    thread = {"pid": pid, "tid": 0}
    yield _named("thread_name", "steps", pid)
    for steps in course.steps:
        when = _when(steps, begin_s)
        each_ms = steps.each_s * 1e3
        name = "step" if steps.count == 1 else f"{steps.count} steps"
        yield {"ph": "X", "name": name, "cat": "step", **thread, **when}
        yield {
            "ph": "C",
            "name": "a step takes (ms)",
            "pid": pid,
            "ts": when["ts"],
            "args": {"ms": each_ms},
        }
    tid = 0
    for row in (CHANGES, COPIES):
        row_events = [event for event in course.events if event.row == row]
        for lane in lanes_of(row_events):
            tid += 1
            yield _named("thread_name", row, pid, tid)
            for event in lane:
                yield {
                    "ph": "X",
                    "name": event.text,
                    "cat": row,
                    "pid": pid,
                    "tid": tid,
                    **_when(event, begin_s),
                }


def _named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    args = {"name": name}
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _when(what: Span | Steps | Event, begin_s: float) -> dict[str, float]:
    """Start in microseconds since `begin_s`, and duration in microseconds."""
    return {
        "ts": (what.start_s - begin_s) * 1e6,
        "dur": (what.end_s - what.start_s) * 1e6,
    }
