"""The frame of a sweep's picture: values on the x axis, and a title."""

from __future__ import annotations

import contextlib
import math
import os
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from tf_convpar.files import atomic
from tf_convpar.planner.simulation import Simulation

_AXES = {
    "devices": "devices",
    "bandwidth": "rate of every link, bit/s",
    "batch": "images in a batch",
    "kernels": "kernels of the convolutions",
    "heterogeneity": "fastest device's speed by the slowest's",
}


@contextlib.contextmanager
def picture(
    simulation: Simulation[Any],
    path: str | os.PathLike[str],
    wide: float,
    columns: int = 1,
) -> Iterator[Sequence[Any]]:
    """Gives axes to draw rows on, and then writes the picture.

    Args:
        simulation: Rows to draw.
        path: Image file to write. Its ending says in which format.
        wide: Inches of its width.
        columns: Number of axes, which stand beside each other.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, 4.4), layout="constrained", dpi=110)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    yield axes
    for each in axes:
        _x_axis(each, simulation)
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="0.92")
        each.set_axisbelow(True)
    figure.suptitle(
        simulation.about, x=0.01, ha="left", fontsize="medium", color="0.25"
    )
    with atomic(path) as part:
        ending = pathlib.Path(path).suffix.lstrip(".") or "png"
        figure.savefig(part, format=ending)


def xs_of(simulation: Simulation[Any]) -> list[float]:
    """Positions of the rows of a sweep on the x axis."""
    rows = simulation.rows
    if simulation.sweep == "kernels":
        return [float(i) for i in range(len(rows))]
    xs = [float(row.value) for row in rows]
    # An infinite value stands a good step beyond the largest finite one.
    beyond = 4 * max((x for x in xs if math.isfinite(x)), default=1.0)
    return [x if math.isfinite(x) else beyond for x in xs]


def _x_axis(axes: Any, simulation: Simulation[Any]) -> None:
    """Labels the x axis with the values of a sweep."""
    from matplotlib.ticker import NullLocator

    xs, sweep = xs_of(simulation), simulation.sweep
    spread = min(xs) > 0 and max(xs) / min(xs) >= 8
    if sweep != "kernels" and spread:
        axes.set_xscale("log", base=10 if sweep == "bandwidth" else 2)
    labels = [row.label.removesuffix("bit") for row in simulation.rows]
    axes.set_xticks(xs, labels)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(_AXES[sweep])
