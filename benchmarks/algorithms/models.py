"""Times what auto chose for all convolutions of eight models beside direct."""

import argparse
import json
import os
import pathlib
import random
import statistics
import time

import rich.console
import rich.progress
import rich.table
from child import Confirm

MODELS = [
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "InceptionV3",
    "MobileNetV2",
    "ResNet50",
    "VGG16",
    "Xception",
]


def geometries(image, batches):
    """Distinct convolutions, each with the names of the models that have it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    from tf_convpar.layers._geometries import convolutions

    found = {}
    for name in MODELS:
        model = getattr(keras.applications, name)(
            weights=None, include_top=False, input_shape=(image, image, 3)
        )
        for batch in batches:
            for _, geometry in convolutions(model, batch):
                found.setdefault(geometry, set()).add(name)
        del model
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--image", type=int, default=112)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="stop then; order is random"
    )
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    found = list(geometries(options.image, options.batches).items())
    random.Random(0).shuffle(found)
    done = 0
    rows = []
    begin = time.time()
    ask = Confirm(options.threads, rounds=9, budget=options.budget)
    for geometry, models in rich.progress.track(
        found, console=rich.console.Console(stderr=True)
    ):
        for which, row in ask(geometry).items():
            rows.append(
                {
                    "convolution": repr(geometry),
                    "batch": geometry.batch,
                    "models": sorted(models),
                    "pass": which,
                    **row,
                }
            )
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
        done += 1
        if time.time() - begin > 60 * options.minutes:
            break
    ask.close()
    print(f"{done} of {len(found)} distinct convolutions and batches")
    table = rich.table.Table(
        "model", "batch", "passes", "not direct", "median gain", "worst"
    )
    for name in MODELS:
        for batch in options.batches:
            own = [
                r for r in rows if name in r["models"] and r["batch"] == batch
            ]
            gains = [r["speedup"] for r in own if "speedup" in r]
            table.add_row(
                name,
                str(batch),
                str(len(own)),
                str(len(gains)),
                f"{statistics.median(gains):.2f}" if gains else "-",
                f"{min(gains):.2f}" if gains else "-",
            )
    rich.console.Console(width=100).print(table)
    gains = sorted(r["speedup"] for r in rows if "speedup" in r)
    print(
        f"{len(rows)} passes, {len(rows) - len(gains)} of them direct; of the "
        f"others the worst: {[round(g, 3) for g in gains[:5]]}; "
        f"{time.time() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()
