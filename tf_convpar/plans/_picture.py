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

from tf_convpar.files._whole import replace
from tf_convpar.plans._prediction import BACKWARD
from tf_convpar.plans._prediction import FORWARD
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._prediction import Span
from tf_convpar.plans._type import CHIEF
from tf_convpar.plans._type import FILTERS
from tf_convpar.plans._type import SAMPLES
from tf_convpar.plans._type import Plan
from tf_convpar.plans._words import seconds_text
from tf_convpar.plans._words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by colour-blind readers too.
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
# Of a picture that nobody has to scroll.
_HIGHEST = 24.0
# Of the step: bars that are wider have an edge, and may have a name.
_WIDE = 0.004
# Inches of the strip of layers.
_STRIP = 0.62


def draw(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws the predicted step: a row for each device and link in use.

    ```python
    draw(plan, "plan.png")
    ```

    Args:
        plan: With a prediction.
        path: The image to write, whole or not at all; its ending says in
            which format, PNG if it has none.

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
    """A strip of the convolutions, in their order, by how they are split."""
    ways = [plan.way(layer) for layer in plan]
    for way, colour in _WAYS.items():
        axes.broken_barh(
            [(i, 1) for i, own in enumerate(ways) if own == way],
            (0, 1),
            color=colour,
            edgecolor="white",
            lw=0.5,
        )
    for way, start, end in _runs(ways):
        # A letter is about 0.55 of its size wide.
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
    """Neighbours that are alike: which, the first, and after the last."""
    start = 0
    for way, group in itertools.groupby(ways):
        end = start + len(list(group))
        yield way, start, end
        start = end


def _steps(
    axes: Axes, rows: Sequence[_Row], prediction: Prediction
) -> set[str]:
    """Who is busy when; the kinds of what they do."""
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
    """A device or a link, by its name in spans, and its label."""

    where: str
    label: str

    @property
    def link(self) -> bool:
        return " -> " in self.where

    @property
    def tall(self) -> float:
        """Of the height of a device."""
        return 0.7 if self.link else 1.0


def _rows(plan: Plan, prediction: Prediction) -> list[_Row]:
    """Devices, each with its links below it; none that do nothing."""
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
    axes: Axes, spans: Sequence[Span], middle: float, tall: float, step: float
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
            # Neighbours of one colour are told apart, if there is room.
            edgecolor="white" if wide else _KINDS[kind],
            lw=0.5 if wide else 0.2,
        )
    for span in spans:
        _name(axes, span, middle, step)


def _name(axes: Axes, span: Span, middle: float, step: float) -> None:
    link = span.what == "send"
    length = span.end - span.start
    # A letter is about 0.55 of its size wide, and axes 0.8 of the picture.
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


def _kind(span: Span) -> str:
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
