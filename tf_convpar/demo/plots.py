"""The picture of three loss curves."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure

from tf_convpar.demo.report import Report
from tf_convpar.demo.report import differences

# Okabe and Ito's, and the first is drawn below the others.
_PLAIN, _ONE, _MANY = "#F5B800", "#56B4E9", "#0B3C7D"
# The smallest relative difference that float32 can tell.
_EPSILON = float(np.finfo(np.float32).eps)


def draw_losses(report: Report, path: pathlib.Path) -> None:
    """Draws the losses of all trainings, and how far they are apart."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    steps = np.arange(1, len(report.plain.losses) + 1)
    many = f"parallelize, {len(report.devices)} devices"
    for training, label, colour, width in (
        (report.plain, "plain Keras, one device", _PLAIN, 7),
        (report.one, "parallelize, one device", _ONE, 3.2),
        (report.many, many, _MANY, 1.2),
    ):
        above.plot(steps, training.losses, color=colour, lw=width, label=label)
    above.set_ylim(bottom=0)
    above.set_ylabel("training loss")
    above.set_title("ResNet-9, the same training three times", loc="left")
    above.legend(frameon=False)
    for training, colour, marker in (
        (report.one, _ONE, "o"),
        (report.many, _MANY, "."),
    ):
        found = differences(report.plain.losses, training.losses)
        below.plot(
            steps,
            # 0 has no logarithm: it is drawn at what float32 resolves.
            np.maximum(found, _EPSILON),
            color=colour,
            lw=0,
            marker=marker,
        )
    below.set_yscale("log")
    below.set_ylabel("relative difference\nfrom plain Keras")
    below.set_xlabel("training step")
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)
