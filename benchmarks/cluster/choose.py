"""Which way to train, for which link, model and machines: a Markdown table.

Times of layers are those of `calibrations`, which `calibrate.sh` has measured
on this machine. Nothing is measured here. Each cell has the way that learns
from most samples a second among those that give the same numbers.
"""

import argparse
import pathlib

import models

HERE = pathlib.Path(__file__).parent
MODELS = ("MobileNetV2", "ResNet50")
PIXELS, CLASSES = 112, 100
MACHINES = {"1 + 1": (1.0, 1.0), "1 + 0.6 + 0.4": (1.0, 0.6, 0.4)}
RATES = [1e6 / 8 * rate for rate in (10, 100, 1000, 10000)]
LATENCY_S = 1e-4
# SyncSGD and DiLoCo for slow links.
NARROW = {"wire": "int8"}
SELDOM = {"every": 100, "fragments": 4, "wire": "int8"}
KINDS = (
    *("one device", "own moments", "own steps"),
    *("own moments, int8", "own steps, int8"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument(
        "--save", action="store_true", help="only write MODEL.keras, here"
    )
    options = parser.parse_args()
    from tf_convpar import planner
    from tf_convpar import units

    heads = [f"{units.link_words(rate)}/s" for rate in RATES]
    if not options.save:
        print(f"| model, batch | machines | numbers | {' | '.join(heads)} |")
        print("|---" * (3 + len(RATES)) + "|")
    for name in options.models:
        model = models.build(name, PIXELS, CLASSES)
        models.compiled(model)
        if options.save:
            model.save(f"{name}.keras")
            continue
        found = planner.load(HERE / "calibrations" / f"{name}.json")
        for words, speeds in MACHINES.items():
            cluster = planner.machines(found, speeds, 1.0, LATENCY_S)
            rows = table(model, cluster)
            for numbers, cells in rows.items():
                print(
                    f"| {name}, {found.batch} | {words} | {numbers} | "
                    f"{' | '.join(cells)} |"
                )


def table(model, cluster):
    """For each kind of numbers a cell for each rate."""
    from tf_convpar import planner

    all_ = planner.sweep_ways(model, cluster, "bandwidth", RATES)
    own = planner.sweep_ways(
        model, cluster, "bandwidth", RATES, moments="own", ways=["split"]
    )
    seldom = planner.sweep_ways(
        model, cluster, "bandwidth", RATES, ways=["DiLoCo"], **SELDOM
    )
    narrow = planner.sweep_ways(
        model, cluster, "bandwidth", RATES, ways=["SyncSGD"], **NARROW
    )
    rows = {kind: [] for kind in KINDS}
    for one, other, *few in zip(
        all_.rows, own.rows, narrow.rows, seldom.rows, strict=True
    ):
        ways = (*one.ways, *other.ways)
        best = {
            numbers: max(
                (way for way in ways if way.numbers == numbers),
                key=lambda way: way.samples_per_s,
            )
            for numbers in KINDS[:3]
        }
        best |= {
            kind: row.ways[0] for kind, row in zip(KINDS[3:], few, strict=True)
        }
        most = max(way.samples_per_s for way in best.values())
        for kind, way in best.items():
            cell = f"{way.name} {way.samples_per_s:.3g}"
            bold = way.samples_per_s == most
            rows[kind].append(f"**{cell}**" if bold else cell)
    return rows


if __name__ == "__main__":
    main()
