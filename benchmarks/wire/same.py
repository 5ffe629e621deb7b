"""Whether accuracies are the same: the test of README, on what was found.

python benchmarks/wire/same.py found.jsonl
"""

import argparse
import json
import pathlib

import numpy as np
from scipy import stats

# Points of accuracy that would be no harm.
MARGIN = 0.5
CONTROLS = [
    ("samples", "float32", "filters"),
    ("mixed", "float32", "filters"),
]


def tost(differences):
    """The p-value of two one-sided t-tests, and the 90 % interval."""
    n, mean = len(differences), np.mean(differences)
    error = np.std(differences, ddof=1) / np.sqrt(n)
    if error == 0:
        return float(abs(mean) >= MARGIN), (mean, mean)
    both = (
        stats.t.sf((mean + MARGIN) / error, n - 1),
        stats.t.cdf((mean - MARGIN) / error, n - 1),
    )
    return max(both), stats.t.interval(0.9, n - 1, mean, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("found", type=pathlib.Path)
    options = parser.parse_args()
    found = {}
    for line in options.found.read_text().splitlines():
        run = json.loads(line)
        key = run["task"], run["split"], run["rounded"]
        found.setdefault(key, {})[run["seed"]] = run["accuracy"]
    print(
        "| data | split | what is rounded | accuracy, % | at 3/4 of the steps "
        "| difference, points: mean, 90 % | p | same |"
    )
    print("|---" * 8 + "|")
    for (task, split, kind), runs in found.items():
        if len(runs) < 2:
            continue
        last = np.array([runs[seed] for seed in sorted(runs)]) * 100
        cells = [
            *(task, split, kind),
            f"{last[:, -1].mean():.2f} ± {last[:, -1].std(ddof=1):.2f}",
            f"{last[:, 0].mean():.2f}",
        ]
        others = [(task, split, "float32")] if kind != "float32" else []
        others += [
            (task, other, "float32")
            for a, b, other in CONTROLS
            if (a, b) == (split, kind)
        ]
        for other in others:
            both = sorted(set(runs) & set(found.get(other, {})))
            if len(both) < 2:
                continue
            differences = 100 * np.array(
                [runs[s][-1] - found[other][s][-1] for s in both]
            )
            p, (low, high) = tost(differences)
            cells += [
                f"{differences.mean():+.2f}, {low:+.2f} to {high:+.2f}",
                f"{p:.2g}",
                "yes" if p < 0.05 else "no",
            ]
        cells += [""] * (8 - len(cells))
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
