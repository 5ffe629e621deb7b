"""The chief of `run.py`: trains by each method, and appends what it saw."""

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import best
import keras
import networks
import tensorflow as tf

# Where `steps` is another one than beside this file.
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

import steps as cluster_steps

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
# Each step in fewer bits.
NARROW = {
    f"SyncSGD {wire}": ("SyncSGD", {"wire": wire}, 0.1)
    for wire in ("bfloat16", "int8", "int4")
}
# Those that meet seldom, for slow links; "mean" is the plain mean of what
# replicas have learned.
SELDOM = {
    f"DiLoCo {every} {wire}{' mean' if mean else ''}": (
        "DiLoCo",
        {"every": every, "wire": wire}
        | ({"outer": lambda: keras.optimizers.SGD(1.0)} if mean else {}),
        0.1,
    )
    for every in (50, 100, 200, 400, 800)
    for wire in ("float32", "int8", "int4")
    for mean in (False, True)
} | {
    "DiLoCo 100 int8 streaming": (
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
ALL = METHODS | NARROW | SELDOM | TABLE


class _Clock(keras.callbacks.Callback):
    """Seconds of training, what was sent, and accuracy at each evaluation.

    Args:
        together: Whether replicas step in rounds. Then an epoch's steps are
            over with the last one's end; else when all that are under way are.
            What follows brings weights to where they are evaluated.
        sent: Bytes that all nodes have sent so far.
        target: Ends when three evaluations in a row have it.
        limit_s: Ends after so many seconds.
        most: Ends after so many evaluations.
    """

    def __init__(self, together, sent, target, limit_s, most):
        super().__init__()
        self.together, self.sent = together, sent
        self.target, self.limit_s, self.most = target, limit_s, most
        self.seconds, self.bytes = 0.0, 0
        self.curve, self.sent_mb = [], []

    def on_train_begin(self, logs=None):
        # Data was just sent.
        before = -1
        while self.sent() > before + 10_000:
            before = self.sent()
            time.sleep(0.3)

    def on_epoch_begin(self, epoch, logs=None):
        self.began = self._now()

    def on_train_batch_end(self, batch, logs=None):
        if self.together:
            self.ended = self._now()

    def on_test_begin(self, logs=None):
        if not self.together:
            self.ended = self._now()
        self.seconds += self.ended[0] - self.began[0]
        self.bytes += self.ended[1] - self.began[1]

    def on_epoch_end(self, epoch, logs=None):
        self.curve.append((round(self.seconds, 4), logs["val_accuracy"]))
        self.sent_mb.append(round(self.bytes / 1e6, 4))
        done = best.held(self.curve, self.target) is not None
        late = self.seconds > self.limit_s or len(self.curve) >= self.most
        if done or late:
            self.model.stop_training = True

    def _now(self):
        return time.perf_counter(), self.sent()


class _Untouched(keras.callbacks.Callback):
    """Gives back what a `fit` with learning rate 0 changes."""

    def __init__(self, method):
        super().__init__()
        self.method = method

    def on_train_begin(self, logs=None):
        kept = [r.kept for r in self.method.replicas]
        slots = [v for o in self.method.centre.optimizers for v in o.variables]
        self.were = [(v, v.numpy()) for v in (*kept, *slots)]

    def restore(self):
        for variable, value in self.were:
            variable.assign(value)


def warm(method, data, steps, **options):
    """Traces and connects all that `fit` needs; nothing is learned."""
    rate = float(method.model.optimizer.learning_rate)
    method.model.optimizer.learning_rate = 0.0
    untouched = _Untouched(method)
    method.fit(
        *data, epochs=1, steps_per_epoch=steps, callbacks=[untouched], **options
    )
    untouched.restore()
    method.model.optimizer.learning_rate = rate


def made(kind, seed, rate, devices, at_once=1, network="lenet", **more):
    """A method of `ALL`, with a model of its own."""
    name, arguments, own = ALL[kind]
    # An optimizer is made when TensorFlow's threads have been set.
    arguments = {
        key: value() if callable(value) else value
        for key, value in arguments.items()
    }
    keras.utils.set_random_seed(seed)
    model = networks.NETWORKS[network][0]()
    model.compile(
        keras.optimizers.SGD(rate or own),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=at_once,
    )
    return getattr(replicas, name)(
        model,
        devices=devices,
        shares=[1.0] * len(devices),
        seed=seed,
        **arguments,
        **more,
    )


def rates_of(kind):
    """The four that each method may choose from."""
    tenth = 0.1 if ALL[kind][0] in ("AsyncMSGD", "AsyncMEASGD") else 1.0
    return [tenth * rate for rate in (0.05, 0.1, 0.2, 0.4)]


def joined(chief_too, logical=None):
    """Devices for replicas, of a process that computes with one thread."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if logical:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * logical
        tf.config.set_logical_device_configuration(cpu, parts)
        return [f"CPU:{i}" for i in range(logical)]
    strategy = convpar.ConvParallelStrategy()
    return [n for n in strategy.devices if chief_too or "worker" in n]


def train(kind, seed, rate, workers, options, most=math.inf):
    """Trains until the target is held, and returns what was seen."""
    more = {}
    if options.rho is not None and "EASGD" in ALL[kind][0]:
        more = {"rho": options.rho}
    method = made(
        *(kind, seed, rate, workers),
        *(options.at_once, options.network),
        **more,
    )
    together = not isinstance(method, Asynchronous)
    every = getattr(method, "every", 1) // getattr(method, "fragments", 1)
    # Local steps of each replica from one evaluation to the next.
    local = options.samples // options.batch // len(workers)
    local = max(every, local - local % every)
    steps = local
    if not together:
        steps = local * len(workers) // getattr(method, "n_push", 1)
    clock = _Clock(
        together,
        lambda: sum(
            cluster_steps.network_bytes(process=process)[1]
            for process in options.processes
        ),
        *(options.target, options.limit, min(most, options.evaluations)),
    )
    train, test = networks.NETWORKS[options.network][1]()
    fit = {
        "batch_size": options.batch,
        "validation_data": test,
        "validation_batch_size": 100,
        "verbose": 0,
    }
    warm(method, train, min(steps, 8), **fit)
    method.fit(
        *train, epochs=10_000, steps_per_epoch=steps, callbacks=[clock], **fit
    )
    row = {
        "method": kind,
        "network": options.network,
        "batch": options.batch,
        "seed": seed,
        "rate": rate or ALL[kind][2],
        "target": options.target,
        "steps": local,
        "exchanges": steps // every,
        "curve": clock.curve,
        "sent_mb": clock.sent_mb,
    }
    with options.output.open("a") as file:
        file.write(json.dumps(row) + "\n")
    at = best.held(clock.curve, options.target)
    print(
        *(kind, seed, row["rate"]),
        None if at is None else (at, clock.curve[at], clock.sent_mb[at]),
        *(len(clock.curve), clock.curve[-1], clock.sent_mb[-1]),
        flush=True,
    )
    return row


def at_best_rates(workers, options):
    """Each method at the rate with which seed 0 was first; then all seeds.

    A rate is given up when it is later than the best so far.
    """
    for kind in options.methods:
        rates = options.rates if options.rates[0] else rates_of(kind)
        rows = []
        for rate in rates:
            found = [best.evaluations(row) for row in rows]
            most = min(found, default=math.inf) + best.IN_A_ROW - 1
            rows.append(train(kind, 0, rate, workers, options, most))
        rate = best.first(rows)["rate"]
        for seed in range(1, options.seeds):
            train(kind, seed, rate, workers, options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--network", choices=networks.NETWORKS, default="lenet")
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), choices=ALL
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", nargs="+", type=float, default=[None])
    parser.add_argument(
        "--best", action="store_true", help="chooses each method's rate first"
    )
    parser.add_argument("--rho", type=float, default=None)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument(
        "--samples", type=int, default=320, help="from one evaluation to next"
    )
    parser.add_argument("--target", type=float, default=0.96)
    parser.add_argument("--chief-too", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds")
    parser.add_argument(
        "--processes",
        nargs="+",
        default=["self"],
        help="one on each node, whose bytes are counted",
    )
    parser.add_argument(
        "--logical",
        type=int,
        help="replicas on so many devices of this process, without workers",
    )
    parser.add_argument(
        "--evaluations", type=int, default=10_000, help="at most so many"
    )
    options = parser.parse_args()
    workers = joined(options.chief_too, options.logical)
    if options.best:
        at_best_rates(workers, options)
        return
    for seed, kind, rate in itertools.product(
        range(options.seeds), options.methods, options.rates
    ):
        train(kind, seed, rate, workers, options)


if __name__ == "__main__":
    main()
