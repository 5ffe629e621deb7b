"""Times a training step of ConvParallel2D with one shard beside Conv2D's.

Three models from the same seed take turns, step by step. Their order moves on
with every round, because it matters which model comes after which. Ratios are
taken within a round. All models are under the same strategy: plain Conv2D,
ConvParallel2D whose only shard is the chief's, and plain Conv2D once more. The
last one shows how far apart two equal models are measured to be. No difference
below that means anything.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import rich.console
import rich.table
import tensorflow as tf

import tf_convpar as convpar

NETWORKS = [(50, 500), (16, 32)]


def network(filters, parallel):
    keras.utils.set_random_seed(1)

    def conv(count):
        if parallel:
            return convpar.ConvParallel2D(count, 5, shards=(count,))
        return keras.layers.Conv2D(count, 5)

    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            conv(filters[0]),
            keras.layers.MaxPooling2D(),
            conv(filters[1]),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def step_times(models, steps, batch_size):
    """Seconds per step of each model, the models taking turns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch_size, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, batch_size)
    times = [[] for _ in models]
    for step in range(steps + 3):
        for turn in range(len(models)):
            index = (step + turn) % len(models)
            begin = time.perf_counter()
            models[index].train_on_batch(x, y)
            if step >= 3:  # The first ones trace and warm up.
                times[index].append(time.perf_counter() - begin)
    return times


def paired(times, others):
    """The median of the ratios within each round."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    rows = []
    for filters in NETWORKS:
        with strategy.scope():
            models = [
                network(filters, parallel) for parallel in (False, True, False)
            ]
        times = step_times(models, options.steps, options.batch_size)
        plain, one_shard, _ = (statistics.median(t) for t in times)
        rows.append(
            {
                "kernels": f"{filters[0]}:{filters[1]}",
                "conv2d_ms": plain * 1e3,
                "one_shard_ms": one_shard * 1e3,
                "ratio": paired(times[1], times[0]),
                "ratio_of_equals": paired(times[2], times[0]),
            }
        )
    if options.json:
        print(json.dumps({"tensorflow": tf.__version__, "rows": rows}))
        return
    table = rich.table.Table("kernels", "Conv2D", "one shard", "ratio", "noise")
    for row in rows:
        table.add_row(
            row["kernels"],
            f"{row['conv2d_ms']:.1f} ms",
            f"{row['one_shard_ms']:.1f} ms",
            f"{row['ratio']:.3f}",
            f"{row['ratio_of_equals']:.3f}",
        )
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
