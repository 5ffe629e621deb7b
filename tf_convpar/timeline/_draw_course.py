"""The panel with the step times of a whole `fit`, and its events."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import LogLocator
from matplotlib.ticker import NullFormatter

from tf_convpar.timeline._course import CHANGES
from tf_convpar.timeline._course import COPIES
from tf_convpar.timeline._course import Course
from tf_convpar.timeline._course import Event

# Marks with a line of text; the file for Perfetto has all.
_MOST_LINES = 8
# Marks closer than this part of the width have one label.
_NEAR = 0.015
_MARK, _STEPS, _RECORDED = "#D55E00", "#0072B2", "#F0E442"
# The least part of the width that can be seen.
_SEEN = 0.004
_PANEL_INCHES, _LINE_INCHES = 1.9, 0.17


def height_of(course: Course) -> float:
    """Inches of the panel, and of the lines below it."""
    lines = min(len(_changes(course)), _MOST_LINES + 1)
    return _PANEL_INCHES + _LINE_INCHES * lines


def draw_course(
    axes: Any, course: Course, recorded: tuple[float, float]
) -> None:
    """Draws step times over time, with a mark for each change.

    Args:
        axes: Axes of matplotlib to draw on.
        course: Course of the `fit`.
        recorded: Begin and end of what is drawn above, in the same seconds.
    """
    begin = course.steps[0].start_s if course.steps else recorded[0]
    changes = _changes(course)
    # A step of seconds is as wide as it lasts.
    times = [t - begin for s in course.steps for t in (s.start_s, s.end_s)]
    times_ms = [s.each_s * 1e3 for s in course.steps for _ in range(2)]
    axes.plot(times, times_ms, ".-", color=_STEPS, lw=0.8, ms=2.5)
    # A step that traces takes a hundred times as long as others.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("a step (ms)")
    if times_ms:
        axes.set_ylim(min(times_ms) / 2, max(times_ms) * 2)
    ends = [e.end_s for e in changes] + [s.end_s for s in course.steps[-1:]]
    width = max([*ends, recorded[1]]) - begin
    axes.set_xlim(-0.01 * width, 1.01 * width)
    middle = sum(recorded) / 2 - begin
    half = max(recorded[1] - recorded[0], _SEEN * width) / 2
    axes.axvspan(
        *(middle - half, middle + half), color=_RECORDED, lw=0, zorder=0
    )
    for event in changes:
        mark(axes, event.start_s - begin, event.end_s - begin)
    for first, last in _label_groups(changes, _NEAR * width):
        axes.annotate(
            f"{first + 1}" if first == last else f"{first + 1}-{last + 1}",
            (changes[first].start_s - begin, 1.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            color=_MARK,
            weight="bold",
        )
    copies = [e.end_s - begin for e in course.events if e.row == COPIES]
    axes.plot(
        *(copies, [0.03] * len(copies), "|"),
        transform=axes.get_xaxis_transform(),
        color="0.35",
        ms=5,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Steps of the whole fit", loc="left", pad=16)
    ticks = "; ticks below: copies of the model" if copies else ""
    axes.set_xlabel(f"time (s); yellow: the steps above{ticks}")
    axes.annotate(
        "\n".join(_change_lines(changes, begin)),
        (0, 0),
        (0, -36),
        xycoords="axes fraction",
        textcoords="offset points",
        va="top",
        fontsize=9,
        linespacing=1.35,
    )


def mark(axes: Any, start: float, end: float) -> None:
    """Marks something that happened, at these places of the time axis."""
    axes.axvspan(start, end, color=_MARK, alpha=0.25, lw=0)
    axes.axvline(end, color=_MARK, lw=1.0)


def _changes(course: Course) -> list[Event]:
    return [event for event in course.events if event.row == CHANGES]


def _label_groups(
    changes: Sequence[Event], near_s: float
) -> list[tuple[int, int]]:
    """First and last change of each group that shares a label."""
    groups: list[tuple[int, int]] = []
    for number, event in enumerate(changes):
        if groups and event.start_s - changes[groups[-1][0]].start_s < near_s:
            groups[-1] = groups[-1][0], number
        else:
            groups.append((number, number))
    return groups


def _change_lines(changes: Sequence[Event], begin_s: float) -> list[str]:
    lines = []
    for number, event in enumerate(changes[:_MOST_LINES], start=1):
        duration_s = event.end_s - event.start_s
        lines.append(
            f"{number}   {event.start_s - begin_s:.1f} s:  "
            + textwrap.shorten(event.text, 130, placeholder=" ...")
            + (f"  ({duration_s:.1f} s)" if duration_s >= 0.05 else "")
        )
    more = len(changes) - _MOST_LINES
    return [*lines, f"and {more} more"] if more > 0 else lines
