"""The picture of the loss curves."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure

from tf_convpar.demo.report import Report
from tf_convpar.demo.report import Trained
from tf_convpar.demo.report import differences

# Okabe and Ito's; the first is drawn below the others, and widest.
_PLAIN, _SPLIT = ("#F5B800", 7.0), ("#0B3C7D", 1.2)
_ONE, _REPLICAS = ("#56B4E9", 3.2), ("#CC79A7", 1.2)
# The smallest relative difference that float32 can tell.
_EPSILON = float(np.finfo(np.float32).eps)


def draw_losses(report: Report, path: pathlib.Path) -> None:
    """Draws the losses of all trainings, and how far they are apart."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    steps = np.arange(1, len(report.plain.losses) + 1)
    largest = _EPSILON
    for training in report.trainings:
        colour, width = _style(report, training)
        label = f"{training.name}, {training.on}"
        above.plot(steps, training.losses, color=colour, lw=width, label=label)
        if training is report.plain or training.replicas:
            continue
        apart = differences(report.plain.losses, training.losses)
        below.plot(
            steps,
            # 0 has no logarithm: it is drawn at what float32 resolves.
            np.maximum(apart, _EPSILON),
            color=colour,
            lw=0,
            marker="o",
            ms=2 + width,
        )
        largest = max(largest, float(apart.max()))
    above.set_ylim(bottom=0)
    above.set_ylabel("training loss")
    above.set_title(
        f"{report.network}, trained in {len(report.trainings)} ways from the "
        "same weights",
        loc="left",
    )
    above.legend(frameon=False)
    below.axhline(_EPSILON, color="0.5", lw=0.8, ls="--")
    below.annotate(
        "equal, as far as float32 can tell",
        (1, _EPSILON),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color="0.35",
        fontsize="small",
    )
    below.set_yscale("log")
    below.set_ylim(_EPSILON / 3, max(1e-4, 3 * largest))
    below.set_ylabel("relative difference\nfrom plain Keras")
    below.set_xlabel("training step")
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)


def _style(report: Report, training: Trained) -> tuple[str, float]:
    """Colour and width of a training's curve."""
    if training.replicas:
        return _REPLICAS
    if training is report.plain:
        return _PLAIN
    return _SPLIT if training is report.split else _ONE
