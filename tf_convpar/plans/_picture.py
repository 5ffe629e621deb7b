"""Plans as pictures: who is busy when."""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
import os
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_convpar.files import replace
from tf_convpar.machines import short
from tf_convpar.plans._prediction import BACKWARD
from tf_convpar.plans._prediction import FORWARD
from tf_convpar.plans._prediction import PredictedSpan
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._type import CHIEF
from tf_convpar.plans._type import FILTERS
from tf_convpar.plans._type import SAMPLES
from tf_convpar.plans._type import Plan
from tf_convpar.units import seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_KINDS = {
    "convolutions, forward": "#0072B2",
    "convolutions, backward": "#009E73",
    "other layers": "#A0A0A0",
    "send": "#E69F00",
    "join": "#CC79A7",
}
_WAYS = {SAMPLES: "#56B4E9", FILTERS: "#D55E00", CHIEF: "#D8D8D8"}
_WIDTH = 11.0
_FONT = 8.0
# The most inches of the height, so that nobody has to scroll.
_HIGHEST = 24.0
# The share of the step above which bars have a white edge.
_WIDE = 0.004
# Inches of the strip of layers.
_STRIP = 0.62


def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws the predicted step: a row for each device and link in use.

    ```python
    draw(plan, "plan.png")
    ```

    Args:
        plan: A plan that has a prediction.
        path: The image to write, whole or not at all. Its ending says in
            which format; without an ending that is PNG.

    Raises:
        ValueError: The plan has no prediction, or the format is unknown.
        OSError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    prediction = plan.prediction
    if prediction is None:
        raise ValueError(
            "Expected a plan with a prediction. Received one whose counts "
            "were changed by hand: load it with its calibration."
        )
    rows = _rows(plan, prediction)
    tall = 0.36 * sum(row.tall for row in rows)
    strip = _STRIP if plan.splits else 0.0
    height = min(1.7 + tall + strip, _HIGHEST)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.suptitle(
        _title(plan, prediction), x=0.01, ha="left", fontsize=_FONT + 4
    )
    if strip:
        layers, axes = figure.subplots(
            2, height_ratios=[strip / 2, max(height - 1.7 - strip, 1.0)]
        )
        _layers(layers, plan)
    else:
        axes = figure.add_subplot()
    kinds = _steps(axes, rows, prediction)
    handles = [
        axes.barh([-9], [0], color=_KINDS[kind], label=kind)
        for kind in _KINDS
        if kind in kinds
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(_KINDS),
        frameon=False,
    )
    content = io.BytesIO()
    ending = pathlib.Path(path).suffix.lstrip(".") or "png"
    figure.savefig(content, format=ending, dpi=150)
    replace(path, content.getvalue())


def _layers(axes: Axes, plan: Plan) -> None:
    """Draws the convolutions as a strip, coloured by how they are split."""
    ways = [plan.way(layer) for layer in plan]
    for way, colour in _WAYS.items():
        axes.broken_barh(
            [(i, 1) for i, layer_way in enumerate(ways) if layer_way == way],
            (0, 1),
            color=colour,
            edgecolor="white",
            lw=0.5,
        )
    for way, start, end in _runs(ways):
        # The width of a letter is about 0.55 of the font's size.
        if 0.55 * _FONT / 72 * (len(way) + 2) < _WIDTH * 0.8 * (
            end - start
        ) / len(ways):
            axes.text(
                (start + end) / 2,
                0.45,
                way,
                ha="center",
                va="center",
                fontsize=_FONT,
                color="white" if way == FILTERS else "black",
            )
    axes.set_xlim(0, len(ways))
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5], [f"{len(ways)} layers"])
    names = list(plan)
    axes.set_xticks([0, len(ways)], [names[0], names[-1]], fontsize=_FONT - 1)
    ends = zip(axes.get_xticklabels(), ("left", "right"), strict=True)
    for label, side in ends:
        label.set(horizontalalignment=side, color="0.35")
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    axes.legend(
        handles=[
            axes.barh(
                [-9],
                [0],
                color=colour,
                label=f"{ways.count(way)} "
                + ("on the chief" if way == CHIEF else f"by {way}"),
            )
            for way, colour in _WAYS.items()
            if way in ways
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 0.95),
        ncols=len(_WAYS),
        frameon=False,
        fontsize=_FONT,
    )


def _runs(ways: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Runs of equal neighbours: the value, its first index, and the end."""
    start = 0
    for way, group in itertools.groupby(ways):
        end = start + len(list(group))
        yield way, start, end
        start = end


def _steps(
    axes: Axes, rows: Sequence[_Row], prediction: Prediction
) -> set[str]:
    """Draws who is busy when; returns the kinds of work that were drawn."""
    step = max(prediction.step_s, 1e-9)
    busy = prediction.busy()
    middles = []
    bottom = 0.0
    kinds = set()
    for row in rows:
        middle = bottom + row.tall / 2
        if not row.link:  # Devices stand out from their links.
            axes.axhspan(bottom, bottom + row.tall, color="0.95", lw=0)
        axes.annotate(
            f"{min(busy.get(row.where, 0.0) / step, 1):.0%}",
            (1.005, middle),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=_FONT,
        )
        spans = [s for s in prediction.spans if s.where == row.where]
        kinds |= {_kind(span) for span in spans}
        _bars(axes, spans, middle, row.tall, step)
        middles.append(middle)
        bottom += row.tall
    axes.annotate(
        "busy",
        (1.005, 1.0),
        xycoords="axes fraction",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=_FONT,
        color="0.35",
    )
    axes.set_yticks(middles, [row.label for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontsize(_FONT if row.link else _FONT + 1.5)
        label.set_color("0.35" if row.link else "black")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(bottom, 0)
    axes.set_xlim(0, step * 1e3)
    axes.set_xlabel("time (ms)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    return kinds


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of a device or a link.

    Attributes:
        where: Name of the device or link in spans.
        label: Text beside the row.
    """

    where: str
    label: str

    @property
    def link(self) -> bool:
        return " -> " in self.where

    @property
    def tall(self) -> float:
        """Height, in heights of a device's row."""
        return 0.7 if self.link else 1.0


def _rows(plan: Plan, prediction: Prediction) -> list[_Row]:
    """Rows of the devices, each with its links below it, without idle ones."""
    chief, *others = plan.devices
    rows = [_Row(chief, short(chief))]
    busy = prediction.busy()
    for name in others:
        group = [
            _Row(name, short(name)),
            _Row(f"{chief} -> {name}", "from the chief"),
            _Row(f"{name} -> {chief}", "to the chief"),
        ]
        group += [
            _Row(f"{name} -> {to}", f"from {short(name)} to {short(to)}")
            for to in others
        ]
        rows += [row for row in group if row.where in busy]
    return rows


def _bars(
    axes: Axes,
    spans: Sequence[PredictedSpan],
    middle: float,
    tall: float,
    step: float,
) -> None:
    tall *= 0.8
    by_look = collections.defaultdict(list)
    for span in spans:
        wide = span.end - span.start > _WIDE * step
        by_look[_kind(span), wide].append(span)
    for (kind, wide), alike in by_look.items():
        axes.broken_barh(
            [(s.start * 1e3, (s.end - s.start) * 1e3) for s in alike],
            (middle - tall / 2, tall),
            facecolor=_KINDS[kind],
            # White edges tell neighbours of one colour apart, if there is room.
            edgecolor="white" if wide else _KINDS[kind],
            lw=0.5 if wide else 0.2,
        )
    for span in spans:
        _name(axes, span, middle, step)


def _name(axes: Axes, span: PredictedSpan, middle: float, step: float) -> None:
    link = span.what == "send"
    length = span.end - span.start
    # The width of a letter is about 0.55 of the font's size, and that of the
    # axes 0.8 of the picture's.
    text = 0.55 * _FONT / 72 * (len(span.layer) + 1)
    if span.layer and text < 0.8 * _WIDTH * length / step:
        axes.text(
            (span.start + length / 2) * 1e3,
            middle,
            span.layer,
            ha="center",
            va="center",
            fontsize=_FONT - 1.5 if link else _FONT,
            color="black" if link or span.what != "compute" else "white",
            clip_on=True,
        )


def _kind(span: PredictedSpan) -> str:
    if span.what == "compute":
        return {
            FORWARD: "convolutions, forward",
            BACKWARD: "convolutions, backward",
        }[span.phase]
    return "other layers" if span.what == "rest" else span.what


def _title(plan: Plan, prediction: Prediction) -> str:
    text = f"Predicted step: {seconds_text(prediction.step_s)} with "
    count = len(plan.used)
    what = "work" if SAMPLES in plan.splits.values() else "kernels"
    text += f"{what} on {count} device{'s' if count > 1 else ''}"
    if plan.best_single is not None and count > 1:
        name, seconds = plan.best_single
        text += f"; {seconds_text(seconds)} on {short(name)} alone"
    return text
