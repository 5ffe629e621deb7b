"""The picture of a simulation."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from tf_convpar.files import whole
from tf_convpar.planner._simulation import Simulation
from tf_convpar.planner.star._rows import SimulationRow

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_PLAN = "#0072B2"
_EQUAL = "#D55E00"
_BEST = "#009E73"
_JOULES = "#E69F00"
_IDEAL = "0.35"

_AXES = {
    "devices": "devices",
    "bandwidth": "rate of every link, bit/s",
    "batch": "images in a batch",
    "kernels": "kernels of the convolutions",
    "heterogeneity": "fastest device's speed by the slowest's",
}


def draw(
    simulation: Simulation[SimulationRow], path: str | os.PathLike[str]
) -> None:
    """Draws the speedup, with Amdahl's law as a dashed line.

    The sweep of unequal devices shows times instead: those of the plan, of an
    equal split and of the fastest device alone. Where all power is known, the
    energy of a step is drawn beside it.

    Args:
        simulation: Rows to draw.
        path: Image file to write. Its ending says in which format.
    """
    from matplotlib.figure import Figure

    sweep, rows, about = simulation.sweep, simulation.rows, simulation.about
    energy = all(row.joules is not None for row in rows)
    figure = Figure(
        figsize=(10 if energy else 7, 4.4), layout="constrained", dpi=110
    )
    axes = figure.subplots(1, 2 if energy else 1, squeeze=False)[0]
    if sweep == "heterogeneity":
        _draw_times(axes[0], rows)
    else:
        _draw_speedups(axes[0], rows, sweep)
    if energy:
        _draw_joules(axes[1], rows, sweep)
    for each in axes:
        x_axis(each, sweep, rows)
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", color="0.92")
        each.set_axisbelow(True)
    figure.suptitle(about, x=0.01, ha="left", fontsize="medium", color="0.25")
    with whole(path) as part:
        ending = pathlib.Path(path).suffix.lstrip(".") or "png"
        figure.savefig(part, format=ending)


def _draw_speedups(
    axes: Any, rows: Sequence[SimulationRow], sweep: str
) -> None:
    xs = xs_of(sweep, rows)
    _limit(axes, xs, [row.ideal for row in rows])
    if any(row.single_s < row.chief_s * (1 - 1e-9) for row in rows):
        alone = [row.chief_s / row.single_s for row in rows]
        label = "best single device"
        axes.plot(xs, alone, color=_BEST, lw=1.2, ls=":", label=label)
    speedups = [row.speedup for row in rows]
    _line(axes, xs, speedups, _PLAN, "planned split")
    axes.annotate(
        f"{speedups[-1]:.2f}",
        (xs[-1], speedups[-1]),
        xytext=(6, -3),
        textcoords="offset points",
        color=_PLAN,
        va="top",
    )
    top = max(max(row.ideal, row.speedup) for row in rows)
    axes.set_ylim(0, 1.08 * top)
    axes.set_ylabel("speedup over the chief alone")
    axes.legend(frameon=False, loc="best")


def _draw_times(axes: Any, rows: Sequence[SimulationRow]) -> None:
    xs = xs_of("heterogeneity", rows)
    _limit(axes, xs, [1e3 * row.chief_s / row.ideal for row in rows])
    for label, colour, times in (
        ("equal split", _EQUAL, [row.equal_s for row in rows]),
        ("fastest device alone", _BEST, [row.chief_s for row in rows]),
        ("planned split", _PLAN, [row.step_s for row in rows]),
    ):
        _line(axes, xs, [1e3 * t for t in times], colour, label)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("a step, ms")
    axes.legend(frameon=False, loc="best")


def _draw_joules(axes: Any, rows: Sequence[SimulationRow], sweep: str) -> None:
    _line(axes, xs_of(sweep, rows), [row.joules for row in rows], _JOULES)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("energy of a step, J")


def _limit(axes: Any, xs: Sequence[float], ys: Sequence[float]) -> None:
    label = "Amdahl's law: links take no time"
    axes.plot(xs, ys, color=_IDEAL, ls="--", lw=1.2, label=label)


def _line(
    axes: Any,
    xs: Sequence[float],
    ys: Sequence[float | None],
    colour: str,
    label: str = "",
) -> None:
    axes.plot(xs, ys, color=colour, lw=2, marker="o", ms=4.5, label=label)


def xs_of(sweep: str, rows: Sequence[Any]) -> list[float]:
    """Positions of the rows of a sweep on the x axis."""
    if sweep == "kernels":
        return [float(i) for i in range(len(rows))]
    xs = [float(row.value) for row in rows]
    # An infinite value stands a good step beyond the largest finite one.
    beyond = 4 * max((x for x in xs if math.isfinite(x)), default=1.0)
    return [x if math.isfinite(x) else beyond for x in xs]


def x_axis(axes: Any, sweep: str, rows: Sequence[Any]) -> None:
    """Labels the x axis with the values of a sweep."""
    from matplotlib.ticker import NullLocator

    xs = xs_of(sweep, rows)
    spread = min(xs) > 0 and max(xs) / min(xs) >= 8
    if sweep != "kernels" and spread:
        axes.set_xscale("log", base=10 if sweep == "bandwidth" else 2)
    labels = [row.label.removesuffix("bit") for row in rows]
    axes.set_xticks(xs, labels)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(_AXES[sweep])
