"""Draws what `run.py` found: accuracy against seconds, and who came first."""

import argparse
import collections
import json
import math
import pathlib
import statistics

import numpy as np
from matplotlib.figure import Figure

PAIRS = [
    ("AsyncSGD", "AsyncEASGD"),
    ("AsyncMSGD", "AsyncMEASGD"),
    ("HogwildSGD", "HogwildEASGD"),
    ("RoundRobinEASGD", "SyncEASGD"),
    ("SyncSGD", "SyncEASGD"),
    ("ParallelSGD", "DownpourSGD"),
]
# Okabe and Ito's, which colour-blind readers can tell apart.
BEFORE, AFTER = "#D55E00", "#0072B2"


def seconds_to(row):
    """Seconds until the target was reached; infinite if it never was."""
    return next((s for s, a in row["curve"] if a >= row["target"]), math.inf)


def middle(rows, seconds):
    """Median accuracy over seeds at each time."""
    known = []
    for row in rows:
        times, values = zip(*row["curve"], strict=True)
        at = np.searchsorted(times, seconds, side="right") - 1
        # Before the first evaluation: a guess among ten digits.
        known.append(np.where(at < 0, 0.1, np.take(values, at.clip(0))))
    return np.median(known, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    options = parser.parse_args()
    of = collections.defaultdict(list)
    for line in options.found.read_text().splitlines():
        row = json.loads(line)
        of[row["method"]].append(row)
    print("| method | learning rate | seconds to the target, median | range |")
    print("|---|---|---|---|")
    for kind, rows in of.items():
        found = sorted(map(seconds_to, rows))
        print(
            f"| {kind} | {rows[0]['rate']:g} | {statistics.median(found):.2f} "
            f"| {found[0]:.2f} to {found[-1]:.2f} |"
        )
    figure = Figure(figsize=(11, 6), layout="constrained")
    pairs = [pair for pair in PAIRS if all(kind in of for kind in pair)]
    axes = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
    last = max(row["curve"][-1][0] for rows in of.values() for row in rows)
    seconds = np.geomspace(0.05, last, 300)
    for own, pair in zip(axes, pairs, strict=False):
        for kind, colour in zip(pair, (BEFORE, AFTER), strict=True):
            own.plot(
                seconds, middle(of[kind], seconds), color=colour, label=kind
            )
        own.axhline(of[pair[0]][0]["target"], color="#A0A0A0", lw=0.8, ls=":")
        own.set_xscale("log")
        own.set_ylim(0.0, 1.0)
        own.legend(frameon=False, loc="lower right")
        own.spines[["top", "right"]].set_visible(False)
    for own in list(axes)[len(pairs) :]:
        own.set_visible(False)
    figure.supxlabel("seconds of training")
    figure.supylabel("accuracy on held-out digits, median of seeds")
    figure.savefig(options.picture, dpi=150)


if __name__ == "__main__":
    main()
