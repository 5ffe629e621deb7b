"""The picture of a simulation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tf_convpar.papers.star_simulation._rows import SimulationRow
from tf_convpar.planner.draw_sweep import picture
from tf_convpar.planner.draw_sweep import xs_of
from tf_convpar.planner.simulation import Simulation

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_PLAN = "#0072B2"
_EQUAL = "#D55E00"
_BEST = "#009E73"
_JOULES = "#E69F00"
_IDEAL = "0.35"


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
    rows = simulation.rows
    energy = all(row.joules is not None for row in rows)
    wide, columns = (10, 2) if energy else (7, 1)
    with picture(simulation, path, wide, columns) as axes:
        xs = xs_of(simulation)
        if simulation.sweep == "heterogeneity":
            _draw_times(axes[0], xs, rows)
        else:
            _draw_speedups(axes[0], xs, rows)
        if energy:
            _line(axes[1], xs, [row.joules for row in rows], _JOULES)
            axes[1].set_ylim(bottom=0)
            axes[1].set_ylabel("energy of a step, J")


def _draw_speedups(
    axes: Any, xs: Sequence[float], rows: Sequence[SimulationRow]
) -> None:
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


def _draw_times(
    axes: Any, xs: Sequence[float], rows: Sequence[SimulationRow]
) -> None:
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
