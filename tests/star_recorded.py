"""What the star's planner says of many clusters, as plain data.

`star_recorded.json` holds what it said before it was taken apart and put
together again. `python tests/star_recorded.py` writes the file.
"""

import itertools
import json
import pathlib
import random

from star_cases import random_calibration

from tf_convpar.papers.star_simulation import convolutions_s
from tf_convpar.papers.star_simulation import describe
from tf_convpar.papers.star_simulation import simulate
from tf_convpar.planner import star
from tf_convpar.planner.star import network
from tf_convpar.planner.star import predict

FILE = pathlib.Path(__file__).with_suffix(".json")
SEEDS = range(24)
# Those of docs/reproducing-the-papers.md, a few values each.
_MBIT = 1e6 / 8
PAPERS = {
    "four CPUs": (
        {"devices": "4xcpu:100GFLOPS", "conv_share": 0.93},
        {"bandwidth": (100 * _MBIT, 1e4 * _MBIT, float("inf"))},
    ),
    "a slower chief": (
        {"devices": "cpu:80GFLOPS,3xcpu:100GFLOPS", "link": "10Gbit"},
        {"devices": (1, 2, 3, 4)},
    ),
    "three GPUs": (
        {"devices": "3xgpu:2TFLOPS", "conv_share": 0.9},
        {"bandwidth": (1e4 * _MBIT, 16e9, float("inf"))},
    ),
    "other sizes": (
        {"devices": "4xcpu:100GFLOPS", "link": "10Gbit"},
        {
            "kernels": ((50, 500), (500, 1500)),
            "batch": (16, 256),
            "heterogeneity": (1, 3, 8),
        },
    ),
    "power": (
        {"devices": "2xjetson-tx1,a100", "link": "1Gbit", "idle": 0.3},
        {"devices": (1, 2, 3, 5)},
    ),
}


def of_seed(seed):
    """The best plan and any other one for one random calibration."""
    calibration = random_calibration(seed)
    dice = random.Random(seed)
    counts = {}
    for layer in calibration.network:
        cuts = sorted(
            dice.randint(0, layer.filters) for _ in calibration.devices[1:]
        )
        ends = [0, *cuts, layer.filters]
        counts[layer.name] = [b - a for a, b in itertools.pairwise(ends)]
    given = predict(calibration, counts)
    plan = star.plan(calibration, dice.choice([None, 1, 3]))
    rows = ()
    # Speeds beside one another say nothing where one takes no time at all.
    if all(convolutions_s(calibration, d) for d in calibration.devices):
        rows = simulate(calibration, "batch", [1, 5]).rows
    return {
        "counts": counts,
        "given": given.step_s,
        "ends": [span.end for span in given.spans],
        "sent": given.sent_bytes,
        "best": plan.prediction.step_s,
        "single": list(plan.single_s.values()),
        "equal": plan.equal_s,
        "rows": [_numbers(row) for row in rows],
    }


def of_papers(name):
    """The rows of one of the papers' clusters."""
    cluster, sweeps = PAPERS[name]
    calibration = describe(network(), **cluster)
    return {
        sweep: [
            _numbers(row) for row in simulate(calibration, sweep, values).rows
        ]
        for sweep, values in sweeps.items()
    }


def _numbers(row):
    """What does not depend on which of two equal plans was found."""
    kept = (
        "label", "devices", "step_s", "chief_s", "single_s", "equal_s",
        "ideal", "capacity", "speedup", "efficiency", "gain",
    )  # fmt: skip
    found = row.to_dict()
    return {name: found[name] for name in kept}


def everything():
    return {
        "seeds": [of_seed(seed) for seed in SEEDS],
        "papers": {name: of_papers(name) for name in PAPERS},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(everything()) + "\n")
