"""The picture of ways to train: a line for each of them."""

from __future__ import annotations

import os

from tf_convpar.planner._sweep_ways import WaySimulation
from tf_convpar.planner._ways_to_train import ONE_DEVICE
from tf_convpar.planner._ways_to_train import OWN_MOMENTS
from tf_convpar.planner._ways_to_train import OWN_STEPS
from tf_convpar.planner.draw_sweep import picture
from tf_convpar.planner.draw_sweep import xs_of

# Okabe and Ito's colours, with grey in the place of a faint yellow.
_COLOURS = (
    "#000000",
    "#0072B2",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#999999",
    "#D55E00",
)
# Lines say whose numbers a way gives.
_LINES = {ONE_DEVICE: "-", OWN_MOMENTS: "--", OWN_STEPS: ":"}
_MARKERS = "os^Dv<>P"


def draw_ways(simulation: WaySimulation, path: str | os.PathLike[str]) -> None:
    """Draws the samples a second of each way to train.

    Args:
        simulation: Ways to draw.
        path: Image file to write. Its ending says in which format.
    """
    with picture(simulation, path, wide=7.6) as (axes,):
        xs = xs_of(simulation)
        for i, (name, numbers) in enumerate(simulation.names.items()):
            ways = [row.of(name) for row in simulation.rows]
            axes.plot(
                xs,
                [way.samples_per_s if way else float("nan") for way in ways],
                color=_COLOURS[i % len(_COLOURS)],
                ls=_LINES[numbers],
                marker=_MARKERS[i % len(_MARKERS)],
                ms=4.5,
                lw=1.8,
                label=f"{name} ({numbers})",
            )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("samples a second")
        axes.figure.legend(
            frameon=False, loc="outside right upper", fontsize="small"
        )
