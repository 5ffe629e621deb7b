"""Plans as pictures: who is busy when."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
from typing import TYPE_CHECKING

from tf_convpar.files._whole import replace
from tf_convpar.plans._prediction import BACKWARD
from tf_convpar.plans._prediction import FORWARD
from tf_convpar.plans._prediction import Prediction
from tf_convpar.plans._prediction import Span
from tf_convpar.plans._type import Plan
from tf_convpar.plans._words import seconds_text
from tf_convpar.plans._words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by colour-blind readers too.
_KINDS = {
    "compute, forward": "#0072B2",
    "compute, backward": "#009E73",
    "send": "#E69F00",
    "join": "#CC79A7",
    "other layers": "#A0A0A0",
}
_WIDTH = 11.0
_FONT = 8.0
# Of a picture that nobody has to scroll.
_HIGHEST = 24.0


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
    height = min(1.7 + 0.36 * sum(row.tall for row in rows), _HIGHEST)
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    step = max(prediction.step_s, 1e-9)
    busy = prediction.busy()
    middles = []
    bottom = 0.0
    for row in rows:
        middle = bottom + row.tall / 2
        if not row.link:  # Devices stand out from their links.
            axes.axhspan(bottom, bottom + row.tall, color="0.95", lw=0)
        axes.annotate(
            f"{busy.get(row.where, 0.0) / step:.0%}",
            (1.005, middle),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=_FONT,
        )
        for span in prediction.spans:
            if span.where == row.where:
                _bar(axes, span, middle, row.tall, step)
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
    axes.set_title(_title(plan, prediction), loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    handles = [
        axes.barh([-9], [0], color=colour, label=kind)
        for kind, colour in _KINDS.items()
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
    chief = plan.devices[0]
    rows = [_Row(chief, short(chief))]
    busy = prediction.busy()
    for name in plan.devices[1:]:
        group = (
            _Row(name, short(name)),
            _Row(f"{chief} -> {name}", "from the chief"),
            _Row(f"{name} -> {chief}", "to the chief"),
        )
        rows += [row for row in group if row.where in busy]
    return rows


def _bar(
    axes: Axes, span: Span, middle: float, tall: float, step: float
) -> None:
    link = span.what == "send"
    tall *= 0.8
    length = span.end - span.start
    axes.broken_barh(
        [(span.start * 1e3, length * 1e3)],
        (middle - tall / 2, tall),
        color=_KINDS[_kind(span)],
        # Neighbours of one colour are told apart.
        edgecolor="white",
        lw=0.5,
    )
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
            color="black" if link or span.what == "join" else "white",
            clip_on=True,
        )


def _kind(span: Span) -> str:
    if span.what == "compute":
        return {
            FORWARD: "compute, forward",
            BACKWARD: "compute, backward",
        }[span.phase]
    return "other layers" if span.what == "rest" else span.what


def _title(plan: Plan, prediction: Prediction) -> str:
    text = f"Predicted step: {seconds_text(prediction.step_s)} with "
    count = len(plan.used)
    text += f"kernels on {count} device{'s' if count > 1 else ''}"
    if plan.best_single is not None and count > 1:
        name, seconds = plan.best_single
        text += f"; {seconds_text(seconds)} on {short(name)} alone"
    return text
