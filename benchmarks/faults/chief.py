"""The program of a chief whose workers are made to fail.

Run by `run.py`, with how the model is spread (filters, samples, replicas), a
fault, and two pipes: one to ask for faults, one for answers. In turn it fits,
evaluates, predicts and saves; a fault happens in each. Prints one JSON object.
"""

import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import keras
import numpy as np
import psutil

import tf_convpar as convpar

STEPS, BATCH = 8, 32
# In which step of an epoch the fault happens.
AT = 3
L = keras.layers


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            L.Conv2D(32, 5, activation="relu", name="first"),
            L.BatchNormalization(),
            L.MaxPooling2D(),
            L.Conv2D(64, 5, activation="relu", name="second"),
            L.Flatten(),
            L.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH, 32, 32, 3)).astype("float32")
    return x, rng.integers(0, 10, len(x))


class Disturbed(keras.callbacks.Callback):
    """Asks for the fault in one batch, and times all."""

    def __init__(self, fault, after_s=0.0, epoch=None):
        super().__init__()
        self.fault, self.after_s, self.epoch = fault, after_s, epoch
        self.now, self.took = 0, []

    def on_epoch_begin(self, epoch, logs=None):
        """Notes which it is."""
        self.now = epoch

    def begin(self, batch, logs=None):
        """Asks for the fault, if it is time."""
        if batch == AT and self.epoch in (None, self.now):
            self.fault(self.after_s)
        self.start = time.perf_counter()

    def end(self, batch, logs=None):
        """Notes how long the batch took."""
        self.took.append(time.perf_counter() - self.start)

    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = begin
    on_train_batch_end = on_test_batch_end = on_predict_batch_end = end


class Saves(keras.callbacks.Callback):
    """Saves the model between two steps, while workers fail."""

    def __init__(self, fault, path):
        super().__init__()
        self.fault, self.path, self.took = fault, path, []

    def on_train_batch_end(self, batch, logs=None):
        """Saves, after one step."""
        if batch == AT:
            self.fault(0.0)
            start = time.perf_counter()
            self.model.save(self.path)
            self.took.append(time.perf_counter() - start)


def fits(model, count, callbacks=()):
    x, y = data()
    options = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    model.fit(x, y, epochs=count, callbacks=list(callbacks), **options)


def main(way, fault, ask, answer):
    with open(ask, "w") as asks, open(answer) as answers:
        disturbed(way, fault, asks, answers)


def disturbed(way, fault, asks, answers):
    """Fits, evaluates, predicts and saves, with a fault in each."""

    def request(what, after_s=0.0):
        asks.write(json.dumps([what, after_s]) + "\n")
        asks.flush()
        if not after_s:
            answers.readline()

    def back():
        request("back")

    strategy = convpar.ConvParallelStrategy()
    plain = network()
    with strategy.scope():
        model = network()
        if way != "replicas":
            split = {"split": way, "shards": (1, 1, 1)}
            model = convpar.parallelize(
                model, {"first": split, "second": split}
            )
    if way == "replicas":
        workers = [d for d in strategy.devices if "worker" in d]
        made = convpar.replicas.SyncEASGD(model, devices=workers)
        elastic = contextlib.nullcontext()
    else:
        made, elastic = model, convpar.callbacks.Elastic(every=1e-3)
    own = [] if way == "replicas" else [elastic]
    x, y = data()
    out, seconds = {"way": way, "fault": fault}, {}
    memory = psutil.Process().memory_info
    fits(made, 1, own)
    calm = Disturbed(lambda after_s: None)
    fits(made, 1, [*own, calm])
    step_s = statistics.median(calm.took)
    # Backwards takes the longer part of a step.
    delays = {"forward": 0.15 * step_s, "backward": 0.7 * step_s}
    after_s = delays.get(fault, 0.0)

    def lose(after_s):
        request("lose", after_s)

    def returns():
        back()
        # Steps in which they are taken back.
        fits(made, 3, own)

    before = memory().rss
    fit = Disturbed(lose, after_s, epoch=1)
    fits(made, 3, [*own, fit])
    seconds["fit"] = max(fit.took)
    returns()
    out["memory"] = (memory().rss - before) >> 20
    tested = Disturbed(lose, 0.15 * after_s)
    found = made.evaluate(
        x, y, batch_size=BATCH, verbose=0, callbacks=[*own, tested]
    )
    seconds["evaluate"] = max(tested.took)
    returns()
    predicted = Disturbed(lose, 0.15 * after_s)
    outputs = made.predict(
        x, batch_size=BATCH, verbose=0, callbacks=[*own, predicted]
    )
    seconds["predict"] = max(predicted.took)
    returns()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "saved.keras"
        saves = Saves(lose, path)
        fits(made, 1, [*own, saves])
        seconds["save"] = max(saves.took)
        keras.saving.load_model(path)
        # No half-written file is left beside it.
        out["saved"] = os.listdir(folder) == ["saved.keras"]
    back()
    if way != "replicas":
        # What plain Keras makes of the same steps.
        fits(plain, 8)
        expected = plain.evaluate(x, y, batch_size=BATCH, verbose=0)
        out["evaluate"] = abs(found - expected)
        fits(plain, 3)
        right = plain.predict(x, batch_size=BATCH, verbose=0)
        out["predict"] = float(np.abs(outputs - right).max())
        fits(plain, 4)
        out["fit"] = _apart(made, plain)
    out |= {"seconds": seconds, "step_s": step_s}
    print(json.dumps(out), flush=True)


def _apart(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


if __name__ == "__main__":
    main(*sys.argv[1:])
