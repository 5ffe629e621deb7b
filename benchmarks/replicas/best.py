"""Tables of what `run.py` found: each method at its best learning rate.

    python benchmarks/replicas/best.py found.jsonl
    python benchmarks/replicas/best.py found.jsonl --learning local.jsonl

The target is reached at the first of three evaluations in a row that have it.
How many exchanges that takes, the link does not change where replicas step in
rounds. So with `--learning` rates and exchanges are those of another file,
made where time costs less, and only what an exchange takes and sends is of the
first one.
"""

import argparse
import collections
import json
import math
import pathlib
import statistics

IN_A_ROW = 3


def held(curve, target):
    """Index of the first evaluation from which the target is held, or None."""
    good = [accuracy >= target for _, accuracy in curve]
    for i in range(len(good) - IN_A_ROW + 1):
        if all(good[i : i + IN_A_ROW]):
            return i
    return None


def evaluations(row):
    """How many it took to hold the target; infinite if it never did."""
    at = held(row["curve"], row["target"])
    return math.inf if at is None else at + 1


def first(rows):
    """The row that held the target first."""
    return min(rows, key=lambda row: (evaluations(row), row["curve"][-1][0]))


def read(file, target=None):
    """Rows of a file, by their methods; with another target if one is given."""
    of = collections.defaultdict(list)
    for line in file.read_text().splitlines():
        row = json.loads(line)
        row["target"] = row["target"] if target is None else target
        of[row["method"]].append(row)
    return of


def at_best(rows):
    """The rows of the rate with which the first seed was first."""
    seed = min(row["seed"] for row in rows)
    rate = first([row for row in rows if row["seed"] == seed])["rate"]
    return [row for row in rows if row["rate"] == rate]


def seen(row):
    """Exchanges, seconds and MB until the target was held."""
    count = evaluations(row)
    if count == math.inf:
        return (math.inf,) * 3
    exchanges = count * row["exchanges"]
    return exchanges, row["curve"][count - 1][0], row["sent_mb"][count - 1]


def reckoned(row, measured):
    """The same, where an exchange takes and sends what it did elsewhere."""
    longest = max(measured, key=lambda own: len(own["curve"]))
    exchanges = len(longest["curve"]) * longest["exchanges"]
    count = evaluations(row) * row["exchanges"]
    return (
        count,
        count * longest["curve"][-1][0] / exchanges,
        count * longest["sent_mb"][-1] / exchanges,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("found", type=pathlib.Path)
    parser.add_argument("--learning", type=pathlib.Path)
    parser.add_argument("--target", type=float)
    options = parser.parse_args()
    found = read(options.found, options.target)
    learned = found
    if options.learning:
        learned = read(options.learning, options.target)
    base = None
    print("| | rate | exchanges | seconds | range | MB | beside `SyncSGD` |")
    print("|---|---|---|---|---|---|---|")
    for kind, rows in found.items():
        if kind not in learned:
            continue
        own = at_best(learned[kind])
        results = [
            reckoned(row, rows) if options.learning else seen(row)
            for row in own
        ]
        exchanges, seconds, mb = zip(*results, strict=True)
        sent = statistics.median(mb)
        base = sent if kind == "SyncSGD" else base
        beside = ""
        if base and sent and sent < math.inf:
            beside = f"1/{base / sent:.0f}"
        print(
            f"| {kind} | {own[0]['rate']:g} "
            f"| {statistics.median(exchanges):g} "
            f"| {statistics.median(seconds):.1f} "
            f"| {min(seconds):.1f} to {max(seconds):.1f} "
            f"| {sent:.3g} | {beside} |"
        )


if __name__ == "__main__":
    main()
