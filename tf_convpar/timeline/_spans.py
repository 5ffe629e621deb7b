"""`Span`, one operation on one device, and how traces become spans."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar.timeline._kinds import STEP
from tf_convpar.timeline._kinds import kind_of

_DEVICE = re.compile(r"/host:(CPU)|/device:(\w+:\d+)")


@dataclasses.dataclass(frozen=True)
class Span:
    """One operation, or a whole step, on one device.

    Attributes:
        task: Name of the task, such as `"/job:worker/task:0"`.
        device: Device of that task: `"CPU"` for all its CPUs, `"GPU:0"`, ...
        name: TensorFlow's name of the operation, `"scope/name:Type"`.
        kind: One of `KINDS`, or `"step"` for a whole training step as the
            chief runs it.
        start_s: Time of the start, in seconds since the trace began on the
            first task.
        end_s: Time of the end, in the same seconds.
    """

    task: str
    device: str
    name: str
    kind: str
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Recording:
    """The spans of all tasks in one recording.

    Attributes:
        spans: In the order of their start.
        began_s: When the first task's trace began, which is 0 in spans: seconds
            since 1970, by that task's clock.
    """

    spans: list[Span]
    began_s: float


def last_steps(
    spans: Iterable[Span], count: int
) -> tuple[list[Span], tuple[float, float]]:
    """The spans of the last whole steps of a trace.

    ```python
    spans, (start_s, end_s) = last_steps(spans, 3)
    ```

    Args:
        spans: Spans of a trace.
        count: The largest number of steps.

    Returns:
        The spans that overlap those steps; and the times in seconds at which
        the first of the steps began and the last ended. A trace without steps
        is returned as a whole.
    """
    spans = list(spans)
    if not spans:
        return [], (0.0, 0.0)
    steps = sorted(
        (s for s in spans if s.kind == STEP), key=lambda s: s.start_s
    )[-count:]
    shown = steps or spans
    start = min(span.start_s for span in shown)
    end = max(span.end_s for span in shown)
    inside = [s for s in spans if s.end_s > start and s.start_s < end]
    return inside, (start, end)


def from_traces(traces: Mapping[str, Any]) -> Recording:
    """Spans of the `Space` message of each task, on one time axis.

    Times are by the clock of each task, so those of several machines agree as
    well as their clocks do.
    """
    begins = {task: _begin_ns(space) for task, space in traces.items()}
    first = min(begins.values(), default=0)
    spans = [
        span
        for task, space in traces.items()
        for plane in space.planes
        for span in _plane_spans(task, plane, begins[task] - first)
    ]
    spans.sort(key=lambda span: span.start_s)
    return Recording(spans, first / 1e9)


def _begin_ns(space: Any) -> int:
    for plane in space.planes:
        names = _names(plane.stat_metadata)
        for stat in plane.stats:
            if names.get(stat.metadata_id) == "profile_start_time":
                return stat.uint64_value or stat.int64_value
    raise ValueError(
        "Expected a trace to say when it began (profile_start_time). "
        f"Received planes: {[plane.name for plane in space.planes]}."
    )


def _plane_spans(task: str, plane: Any, begin_ns: int) -> Iterable[Span]:
    device = _DEVICE.fullmatch(plane.name)
    if device is None:
        return
    names = _names(plane.event_metadata)
    stats = _names(plane.stat_metadata)
    for line in plane.lines:
        for event in line.events:
            # On a GPU the event is a GPU kernel, and a stat of it names the
            # operation that launched it.
            name = _operation(event.stats, stats) or names[event.metadata_id]
            kind = kind_of(name)
            if kind is None:
                continue
            start = (begin_ns + line.timestamp_ns) / 1e9
            start += event.offset_ps / 1e12
            yield Span(
                task,
                device[1] or device[2],
                name,
                kind,
                start,
                start + event.duration_ps / 1e12,
            )


def _operation(stats: Sequence[Any], names: Mapping[int, str]) -> str | None:
    for stat in stats:
        if names.get(stat.metadata_id) == "tf_op":
            return stat.str_value or names.get(stat.ref_value)
    return None


def _names(metadata: Sequence[Any]) -> dict[int, str]:
    return {entry.key: entry.value.name for entry in metadata}
