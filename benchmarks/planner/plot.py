"""Draws predicted against measured steps.

    python benchmarks/planner/plot.py rows.json where.png

`rows.json` is what `run.py --json` wrote.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MARKS = {"plan": "o", "equal": "s", "only 0": "^", "only 1": "v"}


def main(source, target):
    with open(source) as file:
        rows = json.load(file)
    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    colours = dict(zip(clusters, plt.cm.tab10.colors, strict=False))
    figure, axes = plt.subplots(figsize=(7, 6.4), layout="constrained")
    for row in rows:
        axes.scatter(
            row["predicted_ms"],
            row["measured_ms"],
            marker=MARKS[row["split"]],
            color=colours[row["cluster"]],
            s=46,
            zorder=3,
        )
    ends = [150, 10_000]
    axes.plot(ends, ends, color="0.4", lw=1, label="equal")
    axes.fill_between(
        ends,
        [0.9 * e for e in ends],
        [1.1 * e for e in ends],
        color="0.9",
        label="within 10 %",
    )
    for name, colour in colours.items():
        axes.scatter([], [], color=colour, label=name)
    for name, mark in MARKS.items():
        axes.scatter([], [], color="0.3", marker=mark, label=f"split: {name}")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="predicted step, ms",
        ylabel="measured step, ms (median)",
        title="Steps as planned, and as they were",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
