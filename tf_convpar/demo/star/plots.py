"""The picture of two loss curves."""

from __future__ import annotations

import pathlib

import numpy as np
from matplotlib.figure import Figure

from tf_convpar.demo.star.report import Report

_ONE = "#F5B800"
_SPLIT = "#0B3C7D"
# The smallest relative difference that float32 can tell.
_EPSILON = float(np.finfo(np.float32).eps)


def draw_losses(report: Report, path: pathlib.Path) -> None:
    """Draws the losses of both runs, and how far apart they are."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.2))
    steps = np.arange(1, len(report.one.losses) + 1)
    above.plot(steps, report.one.losses, color=_ONE, lw=6, label="one device")
    above.plot(
        steps,
        report.split.losses,
        color=_SPLIT,
        lw=1.4,
        label=f"split over {report.devices} devices",
    )
    above.set_ylim(bottom=0)
    above.set_ylabel("training loss")
    above.set_title("The same training, on one device and split", loc="left")
    above.legend(frameon=False)
    # 0 has no logarithm: equal losses are drawn at what float32 resolves.
    below.plot(
        steps,
        np.maximum(report.differences, _EPSILON),
        color=_SPLIT,
        lw=0,
        marker=".",
        ms=5,
    )
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
    below.set_ylim(_EPSILON / 3, max(1e-4, 3 * report.differences.max()))
    below.set_ylabel("relative\ndifference")
    below.set_xlabel("training step")
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)
