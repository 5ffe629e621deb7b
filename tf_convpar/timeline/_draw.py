"""Timelines as pictures."""

from __future__ import annotations

import os
from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.figure import FigureBase

from tf_convpar.timeline import _kinds
from tf_convpar.timeline._course import CHANGES
from tf_convpar.timeline._course import Course
from tf_convpar.timeline._draw_course import draw_course
from tf_convpar.timeline._draw_course import height_of
from tf_convpar.timeline._draw_course import mark
from tf_convpar.timeline._kinds import KINDS
from tf_convpar.timeline._rows import DeviceRow
from tf_convpar.timeline._rows import rows_of
from tf_convpar.timeline._spans import Span
from tf_convpar.timeline._spans import last_steps

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_COLOURS = {
    _kinds.FORWARD: "#0072B2",
    _kinds.INPUT_GRADIENT: "#E69F00",
    _kinds.KERNEL_GRADIENT: "#009E73",
    _kinds.JOIN: "#CC79A7",
    _kinds.SEND: "#000000",
    _kinds.REST: "#A0A0A0",
}
_LANE = 0.8  # The share of a row's height that all its lanes fill.


def draw(
    spans: Iterable[Span],
    path: str | os.PathLike[str],
    *,
    steps: int = 3,
    title: str = "Who computed what, when",
    course: Course | None = None,
) -> None:
    """Draws what each device did in the last steps of a trace.

    ```python
    draw(record(cluster.tasks, 1.0).spans, "timeline.png")
    ```

    Each device has a row, in which time goes from left to right. Each kind of
    work has a colour, and operations that overlap lie in lanes. At the right of
    a row stands the part of the time in which any operation ran, including the
    time that it waited for a core. If something happened in the `fit`, what all
    its steps took is drawn below, with marks.

    Args:
        spans: Spans of any tasks.
        path: The image to write; its ending says in which format.
        steps: Number of training steps to show, the last ones of the trace.
        title: Title of the picture.
        course: Course of the `fit`, on the time axis of the spans.

    Raises:
        ValueError: There are no spans.
    """
    shown, (start, end) = last_steps(spans, steps)
    rows = rows_of(shown)
    if not rows:
        raise ValueError(
            "Expected spans of at least one operation. Received none: did "
            "anything train while it was recorded?"
        )
    height = 1.9 + 0.62 * len(rows)
    below = 0.0
    if course is not None and any(e.row == CHANGES for e in course.events):
        below = height_of(course)
    figure = Figure(figsize=(11, height + below), layout="constrained")
    upper: FigureBase = figure
    if course is not None and below:
        upper, lower = figure.subfigures(
            2, height_ratios=(height, below), squeeze=False
        ).flat
        draw_course(lower.add_subplot(), course, (start, end))
    axes = upper.add_subplot()
    for index, row in enumerate(rows):
        _draw_row(axes, row, index, start)
        axes.annotate(
            f"{_busy(row, start, end):.0%} busy",
            (1.01, index),
            xycoords=("axes fraction", "data"),
            va="center",
        )
    for begin in _begins(shown, start, end):
        axes.axvline((begin - start) * 1e3, color="0.35", lw=0.8, ls="--")
    if course is not None:
        for event in course.events:
            if event.row == CHANGES and start < event.end_s <= end:
                mark(
                    axes,
                    (event.start_s - start) * 1e3,
                    (event.end_s - start) * 1e3,
                )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, (end - start) * 1e3)
    axes.set_xlabel("time (ms); dashed lines: steps begin; white: waits")
    axes.set_title(title, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [
        # Every kind has its patch, so that pictures can be compared, even if
        # the trace has none of it.
        axes.barh([0], [0], color=_COLOURS[kind], label=kind)
        for kind in KINDS
    ]
    upper.legend(
        handles=handles, loc="outside lower center", ncols=6, frameon=False
    )
    figure.savefig(path, dpi=150)


def _draw_row(axes: object, row: DeviceRow, index: int, start: float) -> None:
    height = _LANE / len(row.lanes)
    for number, lane in enumerate(row.lanes):
        bottom = index - _LANE / 2 + number * height
        for kind in KINDS:
            bars = [
                ((s.start_s - start) * 1e3, (s.end_s - s.start_s) * 1e3)
                for s in lane
                if s.kind == kind
            ]
            axes.broken_barh(  # type: ignore[attr-defined]
                bars, (bottom, height), color=_COLOURS[kind], lw=0
            )


def _begins(spans: Iterable[Span], start: float, end: float) -> list[float]:
    return [
        span.start_s
        for span in spans
        if span.kind == _kinds.STEP and start < span.start_s < end
    ]


def _busy(row: DeviceRow, start: float, end: float) -> float:
    """The part of the time in which the device ran any operation."""
    total, reached = 0.0, start
    spans = (span for lane in row.lanes for span in lane)
    for span in sorted(spans, key=lambda s: s.start_s):
        begin = max(span.start_s, reached)
        stop = min(span.end_s, end)
        if stop > begin:
            total += stop - begin
            reached = stop
    return total / (end - start)
