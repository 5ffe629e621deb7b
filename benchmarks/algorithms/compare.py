"""Compares training steps of this package, of plain Keras and of PyTorch.

Each side is a process, and all have the same cores. They take turns, step by
step, in an order that moves on with each round. Ratios are taken within a
round.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys

import rich.console
import rich.progress
import rich.table

HERE = pathlib.Path(__file__).parent
OURS = "ConvParallel, auto"
SIDES = ["Keras", "Keras, XLA", "PyTorch", "PyTorch, channels last", OURS]
NETWORKS = ["500:1500", "50:500", "VGG16", "ResNet50"]
# Those of `torch_networks.py`; any application of Keras may be named.
IN_PYTORCH = NETWORKS


class Side:
    """A process that makes steps when told."""

    def __init__(self, name, network, threads):
        self.process = subprocess.Popen(
            [sys.executable, HERE / "networks.py", name, network, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def step(self):
        """Makes one step, and returns its seconds and its loss."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"{self.process.args[2:]} ended")
        return float(answer[0]), float(answer[1])

    def close(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def compare(network, threads, rounds, progress, names=SIDES):
    """Median times of each side, their ratios to ours, and first losses."""
    if network not in IN_PYTORCH or importlib.util.find_spec("torch") is None:
        names = [name for name in names if "PyTorch" not in name]
    task = progress.add_task(
        f"{network}, {threads} thread(s)", total=rounds + len(names)
    )
    sides, losses = {}, {}
    for name in names:
        # Sides start one after the other: their first step compiles, and with
        # "auto" measures.
        sides[name] = Side(name, network, threads)
        losses[name] = sides[name].step()[1]
        progress.advance(task)
    times = {name: [] for name in names}
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            seconds, _ = sides[name].step()
            if number:  # The first round warms up.
                times[name].append(seconds)
        progress.advance(task)
    for side in sides.values():
        side.close()
    return {
        "network": network,
        "threads": threads,
        "median_ms": {n: statistics.median(t) * 1e3 for n, t in times.items()},
        "speedup": {
            n: statistics.median(
                a / b for a, b in zip(t, times[OURS], strict=True)
            )
            for n, t in times.items()
        },
        "first_loss": losses,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    with rich.progress.Progress(
        console=rich.console.Console(stderr=True)
    ) as progress:
        for network in options.networks:
            for threads in options.threads:
                rows.append(
                    compare(
                        *(network, threads, options.rounds, progress),
                        names=[OURS, *(n for n in options.sides if n != OURS)],
                    )
                )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    table = rich.table.Table("network", "threads", *SIDES)
    for row in rows:
        table.add_row(
            row["network"],
            str(row["threads"]),
            *(
                f"{row['median_ms'][n]:.1f} ms ({row['speedup'][n]:.2f})"
                if n in row["median_ms"]
                else "-"
                for n in SIDES
            ),
        )
    rich.console.Console(width=140).print(table)


if __name__ == "__main__":
    main()
