"""Draws what other nodes add to one that runs this package.

    python benchmarks/cluster/plot.py rows.json where.png

`rows.json` is what `run.py --json` wrote.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main(source, target):
    with open(source) as file:
        rows = [row for row in json.load(file) if "nodes_add" in row]
    # The two measurements of the baseline are 1 in the mean, by definition.
    rows = [row for row in rows if row["system"] != "one"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    shares = {row["case"]: sum(row["shares"]) for row in rows}
    height = 0.8 / len(systems)
    figure, axes = plt.subplots(
        figsize=(8, 1.2 + 0.28 * len(systems) * len(cases)),
        layout="constrained",
    )
    for i, system in enumerate(systems):
        found = {
            r["case"]: r["nodes_add"] for r in rows if r["system"] == system
        }
        places = [cases.index(case) + i * height for case in found]
        bars = axes.barh(places, found.values(), height, label=system)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    middle = (len(systems) - 1) / 2 * height
    for i, case in enumerate(cases):
        # Cores of all nodes, relative to the chief's.
        ideal = shares[case] / next(
            row["shares"][0] for row in rows if row["case"] == case
        )
        axes.plot(
            [ideal] * 2,
            [i - height / 2, i - height / 2 + 0.8],
            color="0.3",
            ls=":",
            label=None if i else "cores of all nodes",
        )
    axes.axvline(1, color="0.3", lw=1)
    axes.set_yticks(
        [i + middle for i in range(len(cases))],
        [case.replace(", nodes", ",\nnodes") for case in cases],
        fontsize=8,
    )
    axes.set(
        xlabel="times as fast as this package on the first node",
        title="What other nodes add to a training step",
    )
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:])
