"""Times the choice for each pass of single convolutions beside direct."""

import argparse
import json
import pathlib

import rich.console
import rich.progress
import rich.table
from child import Confirm

from tf_convpar.algorithms._algorithm import Geometry

# Image, channels, filters and window; with "same" padding and batch 64.
CASES = [
    (14, 512, 512, 3),
    (7, 512, 512, 3),
    (28, 256, 256, 3),
    (14, 256, 256, 3),
    (56, 128, 128, 3),
    (28, 128, 128, 3),
    (56, 64, 64, 3),
    (28, 64, 64, 7),
    (28, 256, 256, 7),
    (56, 64, 64, 7),
    (56, 128, 128, 7),
    (28, 64, 64, 11),
    (28, 256, 256, 11),
    (56, 64, 64, 11),
]


def total(passes, key):
    """Time of all three passes; None where direct was chosen for any."""
    if any(key not in row for row in passes.values()):
        return None
    return sum(row[key] for row in passes.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--cases", type=int, nargs="*", default=range(len(CASES))
    )
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    console = rich.console.Console(stderr=True)
    for threads in options.threads:
        ask = Confirm(threads)
        for size, channels, filters, window in rich.progress.track(
            [CASES[i] for i in options.cases],
            f"{threads} thread(s)",
            console=console,
        ):
            passes = ask(
                Geometry(
                    (size, size),
                    channels,
                    filters,
                    window=(window, window),
                    padding="same",
                    batch=options.batch,
                )
            )
            rows.append(
                {
                    "image": size,
                    "channels": channels,
                    "filters": filters,
                    "window": window,
                    "threads": threads,
                    "passes": passes,
                }
            )
            console.print(json.dumps(rows[-1]))
        ask.close()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    table = rich.table.Table(
        "convolution", "threads", "forward", "input gr.", "kernel gr.", "all"
    )
    for row in rows:
        passes = row["passes"]
        direct, chosen = total(passes, "direct_ms"), total(passes, "chosen_ms")
        table.add_row(
            "{image} px, {channels} -> {filters}, {window}x{window}".format(
                **row
            ),
            str(row["threads"]),
            *(
                f"{p['direct_ms']:.1f} / {p['chosen_ms']:.1f} ms {p['chosen']}"
                if "chosen_ms" in p
                else "direct"
                for p in passes.values()
            ),
            f"{direct / chosen:.2f}" if direct and chosen else "-",
        )
    rich.console.Console(width=140).print(table)


if __name__ == "__main__":
    main()
