"""Draws time against window and channels, and which algorithm wins where."""

import argparse
import json
import pathlib

import matplotlib
import rich.console
import rich.progress
from child import Confirm

from tf_convpar.algorithms._algorithm import Geometry

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

WINDOWS = [1, 2, 3, 5, 7, 9, 11]
CHANNELS = [8, 16, 32, 64, 128, 256]
KINDS = ["direct", "gemm", "winograd", "fft"]


def measure(threads, batch, size):
    """Rows of what was chosen, and milliseconds of the forward pass."""
    ask = Confirm(threads, rounds=3, budget=0.2)
    rows = []
    for window in rich.progress.track(
        WINDOWS, console=rich.console.Console(stderr=True)
    ):
        for channels in CHANNELS:
            geometry = Geometry(
                (size, size),
                channels,
                channels,
                window=(window, window),
                padding="same",
                batch=batch,
            )
            rows.append(
                {
                    "window": window,
                    "channels": channels,
                    **ask(geometry)["forward"],
                }
            )
    ask.close()
    return rows


def draw(rows, title, path):
    """Draws a cell for each window and number of channels."""
    gains = np.ones((len(WINDOWS), len(CHANNELS)))
    figure, axes = plt.subplots(figsize=(8, 5.5), layout="constrained")
    for row in rows:
        i = WINDOWS.index(row["window"])
        j = CHANNELS.index(row["channels"])
        gains[i, j] = row.get("speedup", 1)
        text = row["chosen"]
        if "chosen_ms" in row:
            text += f"\n{row['direct_ms']:.3g} → {row['chosen_ms']:.3g} ms"
            text += f"\n{row['speedup']:.2f}x"
        axes.text(j, i, text, ha="center", va="center", fontsize=7.5)
    # Text stays black, so no cell is darker than half.
    picture = axes.imshow(
        np.log2(gains), cmap="Greens", vmin=0, vmax=2.6, aspect="auto"
    )
    axes.set_xticks(range(len(CHANNELS)), CHANNELS)
    axes.set_yticks(range(len(WINDOWS)), [f"{w}x{w}" for w in WINDOWS])
    axes.set(xlabel="channels and filters", ylabel="kernel", title=title)
    figure.colorbar(picture, label="log2 of the speed beside direct")
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--image", type=int, default=28)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = measure(options.threads, options.batch, options.image)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    draw(
        rows,
        f"Forward pass at {options.image} pixels, batch {options.batch}, "
        f"{options.threads} thread(s): what wins",
        options.picture,
    )


if __name__ == "__main__":
    main()
