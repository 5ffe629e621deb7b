"""The picture of a step's memory over batch sizes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from tf_convpar.files import atomic
from tf_convpar.papers.estimate.memory._step import Memory
from tf_convpar.units import GIB
from tf_convpar.units import MIB
from tf_convpar.units import three_digits

# What does not grow with the batch is at the bottom.
_COLORS = {
    "weights": "#0B3C7D",
    "slots": "#3D73B8",
    "workspace": "#9C9C9C",
    "input": "#8FB4DE",
    "feature maps": "#F5B800",
    "gradients": "#D9673B",
    "allocator": "#E3E3E3",
}


def draw(
    memories: Sequence[Memory],
    path: pathlib.Path,
    title: str,
    limit_bytes: int | None = None,
) -> None:
    """Draws a bar for each batch: the memory at the peak, by kind.

    Args:
        memories: Memory of a step of one model, for ascending batches.
        path: The PNG file to write, which is replaced as a whole.
        title: Title of the picture.
        limit_bytes: Memory that there is, drawn as a line; None for no line.
    """
    # The import takes half a second, which other commands do not wait for.
    from matplotlib.figure import Figure

    unit, name = GIB, "GiB"
    if max(memory.peak_bytes for memory in memories) < 2 * unit:
        unit, name = MIB, "MiB"
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    places = range(len(memories))
    below = [0.0] * len(memories)
    for kind, color in _COLORS.items():
        heights = [memory.peak.get(kind, 0) / unit for memory in memories]
        if any(heights):
            axes.bar(
                places, heights, 0.7, bottom=below, color=color, label=kind
            )
        below = [a + b for a, b in zip(below, heights, strict=True)]
    for place, height in zip(places, below, strict=True):
        axes.annotate(
            three_digits(height),
            (place, height),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="small",
        )
    if limit_bytes is not None:
        axes.axhline(limit_bytes / unit, color="0.2", lw=1, ls="--")
        axes.annotate(
            f"{three_digits(limit_bytes / unit)} {name}",
            (0, limit_bytes / unit),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set_xticks(places, [str(memory.batch) for memory in memories])
    axes.set_xlabel("images in a batch")
    axes.set_ylabel(f"memory at the peak ({name})")
    axes.set_title(title, loc="left")
    axes.margins(y=0.1)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    with atomic(path) as part:
        figure.savefig(part, format="png", dpi=120)
