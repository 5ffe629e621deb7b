"""Compares steps of this package, of Keras, PyTorch and onnxruntime.

Each side is a process, and all have the same cores. They take turns, step by
step, in an order that moves on with each round. Ratios are taken within a
round. With `--steps` a turn is several steps, of which the median counts: so
one finds caches as its own last step left them, not as others did.
"""

import argparse
import itertools
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
SIDES = [
    *("Keras", "Keras, XLA", "PyTorch", "PyTorch, channels last"),
    *("onnxruntime", OURS),
]
NETWORKS = ["500:1500", "50:500", "VGG16", "ResNet50"]
EIGHT = [
    *("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "InceptionV3"),
    *("MobileNetV2", "ResNet50", "VGG16", "Xception"),
]


class Side:
    """A process that makes steps when told."""

    def __init__(self, name, asked, torch_python):
        asked = json.dumps({**asked, "side": name})
        python = torch_python if "PyTorch" in name else sys.executable
        self.process = subprocess.Popen(
            [python, HERE / "networks.py", asked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def step(self):
        """Makes one step, and returns its seconds and its number."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"{self.process.args[2:]} ended")
        return float(answer[0]), float(answer[1])

    def turn(self, steps):
        """The median seconds of some steps."""
        return statistics.median(self.step()[0] for _ in range(steps))

    def close(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def compare(asked, rounds, progress, names=SIDES, torch_python=None, steps=1):
    """Median times of each side, their ratios to ours, and first steps."""
    if torch_python is None:
        names = [name for name in names if "PyTorch" not in name]
    if asked["mode"] != "predict":
        names = [name for name in names if name != "onnxruntime"]
    title = ", ".join(f"{key} {value}" for key, value in asked.items())
    task = progress.add_task(title, total=rounds + len(names))
    sides, first = {}, {}
    for name in names:
        # Sides start one after the other: their first step compiles, and with
        # "auto" measures.
        sides[name] = Side(name, asked, torch_python)
        first[name] = sides[name].step()
        progress.advance(task)
    times = {name: [] for name in names}
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            seconds = sides[name].turn(steps)
            if number:  # The first round warms up.
                times[name].append(seconds)
        progress.advance(task)
    for side in sides.values():
        side.close()
    return {
        **asked,
        "median_ms": {n: statistics.median(t) * 1e3 for n, t in times.items()},
        "speedup": {
            n: statistics.median(
                a / b for a, b in zip(t, times[OURS], strict=True)
            )
            for n, t in times.items()
        },
        "first_s": {name: seconds for name, (seconds, _) in first.items()},
        "first_number": {name: number for name, (_, number) in first.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1, help="in a turn")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument(
        "--networks",
        nargs="*",
        default=NETWORKS,
        help="or `eight`, or any application of Keras; PyTorch has the eight",
    )
    parser.add_argument("--batch", type=int, nargs="*", default=[16])
    parser.add_argument("--mode", choices=["train", "predict"], default="train")
    parser.add_argument("--optimizer", choices=["SGD", "Adam"], default="SGD")
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    parser.add_argument(
        "--torch-python",
        help="of an environment with torch, torchvision and timm; without it, "
        "PyTorch is left out",
    )
    parser.add_argument("--json", type=pathlib.Path, help="a line for each row")
    options = parser.parse_args()
    networks = EIGHT if options.networks == ["eight"] else options.networks
    names = [OURS, *(n for n in options.sides if n != OURS)]
    rows = []
    with rich.progress.Progress(
        console=rich.console.Console(stderr=True)
    ) as progress:
        for network, batch, threads in itertools.product(
            networks, options.batch, options.threads
        ):
            asked = {
                **{"network": network, "mode": options.mode},
                **{"batch": batch, "threads": threads},
                "optimizer": options.optimizer,
            }
            rows.append(
                compare(
                    asked,
                    options.rounds,
                    progress,
                    names,
                    options.torch_python,
                    options.steps,
                )
            )
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    table = rich.table.Table(
        "network", "batch", "threads", *SIDES, "first step, beside Keras'"
    )
    for row in rows:
        first = row["first_s"]
        table.add_row(
            *(row["network"], str(row["batch"]), str(row["threads"])),
            *(
                f"{row['median_ms'][n]:.1f} ms ({row['speedup'][n]:.2f})"
                if n in row["median_ms"]
                else "-"
                for n in SIDES
            ),
            f"{first[OURS] - first['Keras']:+.1f} s"
            if "Keras" in first
            else "-",
        )
    rich.console.Console(width=160).print(table)


if __name__ == "__main__":
    main()
