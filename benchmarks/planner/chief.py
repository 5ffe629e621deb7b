"""The chief of a benchmark: calibrates, plans, then makes real steps.

Prints one line of JSON for each split, with the predicted and the measured
step.
"""

import argparse
import json
import os
import statistics
import sys
import time


def build(kernels, strategy):
    import keras

    import tf_convpar as convpar

    first, second = kernels
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                convpar.ConvParallel2D(
                    first, 5, activation="relu", name="first"
                ),
                keras.layers.MaxPooling2D(),
                convpar.ConvParallel2D(
                    second, 5, activation="relu", name="second"
                ),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
    return model


def steps(model, batch):
    """A function that makes one training step, warmed up."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, batch)
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()

    def step():
        start = time.perf_counter()
        for value in tf.nest.flatten(model.train_function(data)):
            value.numpy()
        return time.perf_counter() - start

    for _ in range(2):
        step()
    return step


def measure(models, batch, seconds, least):
    """Seconds of training steps of each model; they take turns."""
    run = {name: steps(model, batch) for name, model in models.items()}
    times = {name: [] for name in models}
    begin = time.perf_counter()
    while (
        len(times[next(iter(times))]) < least
        or time.perf_counter() - begin < seconds
    ):
        for name, step in run.items():
            times[name].append(step())
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--least", type=int, default=5)
    parser.add_argument("--splits", nargs="*", default=["plan"])
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    import tf_convpar as convpar
    from tf_convpar.planner import star as planner

    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    strategy = convpar.ConvParallelStrategy()
    kernels = tuple(map(int, options.kernels.split(":")))
    begin = time.perf_counter()
    calibration = planner.calibrate(
        build(kernels, strategy), strategy, options.batch, throughput="dry_run"
    )
    calibrated = time.perf_counter() - begin
    found = planner.plan(calibration)
    devices = len(calibration.devices)
    layers = {"first": kernels[0], "second": kernels[1]}

    def all_on(device):
        return {
            name: tuple(n if d == device else 0 for d in range(devices))
            for name, n in layers.items()
        }

    splits = {
        "plan": dict(found),
        "equal": {
            name: tuple(
                n // devices + (d < n % devices) for d in range(devices)
            )
            for name, n in layers.items()
        },
        **{f"only {d}": all_on(d) for d in range(devices)},
    }
    if "KEEP" in os.environ:
        calibration.save(os.environ["KEEP"])
    models = {}
    for name in options.splits or splits:
        strategy.plan = {k: list(v) for k, v in splits[name].items()}
        models[name] = build(kernels, strategy)
    measured = measure(models, options.batch, options.seconds, options.least)
    for name, times in measured.items():
        split = splits[name]
        quartiles = statistics.quantiles(times, n=4)
        row = {
            "kernels": options.kernels,
            "split": name,
            "counts": split,
            "predicted_ms": planner.predict(calibration, split).step_s * 1e3,
            "measured_ms": statistics.median(times) * 1e3,
            "spread": (quartiles[2] - quartiles[0]) / quartiles[1],
            "steps": len(times),
            "calibration_s": calibrated,
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
