"""The chief of `run.py`: trains by each method, and appends what it saw."""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import digits
import keras
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import replicas
from tf_convpar.replicas._engines import Asynchronous

# Class, arguments that are not the defaults, and the learning rate: of 0.05,
# 0.1, 0.2 and 0.4 (a tenth of that with momentum) the one that was first.
METHODS = {
    "SyncSGD": ("SyncSGD", {}, 0.1),
    "SyncEASGD": ("SyncEASGD", {}, 0.1),
    "AsyncSGD": ("AsyncSGD", {}, 0.05),
    "AsyncEASGD": ("AsyncEASGD", {}, 0.2),
    "AsyncMSGD": ("AsyncMSGD", {}, 0.005),
    "AsyncMEASGD": ("AsyncMEASGD", {}, 0.02),
    "HogwildSGD": ("HogwildSGD", {}, 0.05),
    "HogwildEASGD": ("HogwildEASGD", {}, 0.2),
    "DownpourSGD": ("DownpourSGD", {"n_fetch": 4, "n_push": 4}, 0.1),
    "ParallelSGD": ("ParallelSGD", {}, 0.05),
    "RoundRobinEASGD": ("RoundRobinEASGD", {}, 0.1),
}
# Those that meet seldom, for slow links.
SELDOM = {
    f"DiLoCo {wire}": ("DiLoCo", {"every": 100, "wire": wire}, 0.1)
    for wire in ("float32", "int8", "int4")
} | {
    # The plain mean of what replicas have learned.
    "DiLoCo mean": (
        "DiLoCo",
        {
            "every": 100,
            "wire": "int8",
            "outer": lambda: keras.optimizers.SGD(1.0),
        },
        0.1,
    ),
    "DiLoCo streaming": (
        "DiLoCo",
        {"every": 100, "fragments": 4, "wire": "int8"},
        0.1,
    ),
}
# Those of the paper's table 3. The original sends each layer by itself.
TABLE = {
    "original": ("RoundRobinEASGD", {"packed": False}, 0.1),
    "SyncEASGD1": ("SyncEASGD", {"variant": 1}, 0.1),
    "SyncEASGD2": ("SyncEASGD", {"variant": 2}, 0.1),
    "SyncEASGD3": ("SyncEASGD", {"variant": 3}, 0.1),
}
ALL = METHODS | SELDOM | TABLE


class _Clock(keras.callbacks.Callback):
    """Seconds of training, and accuracy at each evaluation."""

    def __init__(self, target, limit_s):
        super().__init__()
        self.target, self.limit_s = target, limit_s
        self.seconds, self.since = 0.0, None
        self.curve = []

    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.since = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.since is None:
            self.since = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.seconds += time.perf_counter() - self.since

    def on_epoch_end(self, epoch, logs=None):
        self.curve.append((round(self.seconds, 4), logs["val_accuracy"]))
        reached = [accuracy for _, accuracy in self.curve[-3:]]
        done = len(reached) == 3 and min(reached) >= self.target
        if done or self.seconds > self.limit_s:
            self.model.stop_training = True


def lenet(seed, rate, at_once=1):
    keras.utils.set_random_seed(seed)
    conv, pool = keras.layers.Conv2D, keras.layers.MaxPooling2D
    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            *(conv(6, 5, activation="relu"), pool()),
            *(conv(16, 5, activation="relu"), pool()),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=at_once,
    )
    return model


def made(kind, seed, rate, devices, at_once=1, **more):
    """A method of `ALL`, with a model of its own."""
    name, arguments, own = ALL[kind]
    # An optimizer is made when TensorFlow's threads have been set.
    arguments = {
        key: value() if callable(value) else value
        for key, value in arguments.items()
    }
    return getattr(replicas, name)(
        lenet(seed, rate or own, at_once),
        devices=devices,
        shares=[1.0] * len(devices),
        seed=seed,
        **arguments,
        **more,
    )


def joined(chief_too):
    """Devices for replicas, of a process that computes with one thread."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = convpar.ConvParallelStrategy()
    return [n for n in strategy.devices if chief_too or "worker" in n]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), choices=ALL
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", nargs="+", type=float, default=[None])
    parser.add_argument("--rho", type=float, default=None)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--samples", type=int, default=320, help="from one evaluation to next"
    )
    parser.add_argument("--target", type=float, default=0.96)
    parser.add_argument("--chief-too", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds")
    options = parser.parse_args()
    workers = joined(options.chief_too)
    train, test = digits.load()
    for seed, kind, rate in itertools.product(
        range(options.seeds), options.methods, options.rates
    ):
        more = {}
        if options.rho is not None and "EASGD" in ALL[kind][0]:
            more = {"rho": options.rho}
        clock = _Clock(options.target, options.limit)
        method = made(kind, seed, rate, workers, options.at_once, **more)
        together = not isinstance(method, Asynchronous)
        steps = options.samples // options.batch
        each = max(1, steps // len(workers)) if together else steps
        method.fit(
            *train,
            batch_size=options.batch,
            epochs=10_000,
            steps_per_epoch=each,
            validation_data=test,
            callbacks=[clock],
            verbose=0,
        )
        row = {
            "method": kind,
            "seed": seed,
            "rate": rate or ALL[kind][2],
            "target": options.target,
            "steps": each,
            "curve": clock.curve,
        }
        with options.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        reached = next(
            (
                (i, s)
                for i, (s, a) in enumerate(clock.curve)
                if a >= row["target"]
            ),
            None,
        )
        print(kind, seed, rate, reached, clock.curve[-1], flush=True)


if __name__ == "__main__":
    main()
