"""Run with a fault and a split: trains on workers, some of which are lost.

`kill` ends them, `stop` lets them hang, `apart` cuts them off from each other,
`blink` only for a moment. They return after the next epoch. With `near` they
are killed, and all copies but the first stay with the workers. With `new` they
have not been there before. With `late` they are killed after the step. With
`echo` calls fail when they return that they had left when they hung; with
`both` the second one is killed beside one that hangs so. Split `mixed`, the
first layer is by filters and the second by samples.

Prints one JSON object: history and weights of the training, those of plain
Keras on the same batches, the devices after each epoch, and seconds of steps.
"""

import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import psutil
import tensorflow as tf
from parted import parted_workers

import tf_convpar as convpar
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.local_cluster import local_workers

EPOCHS, STEPS, BATCH = 4, 6, 16
L = keras.layers


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            L.Conv2D(12, 3, activation="relu", name="first"),
            L.BatchNormalization(),
            L.MaxPooling2D(),
            L.Dropout(0.2, seed=3),
            L.Conv2D(24, 3, activation="relu", name="second"),
            L.Flatten(),
            L.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH, 16, 16, 3)).astype("float32")
    return x, rng.integers(0, 10, len(x))


class Fault(keras.callbacks.Callback):
    """Makes workers fail before a step, and return after an epoch."""

    def __init__(self, how, local, when, lost, strategy):
        super().__init__()
        self.how, self.local, self.late = how, local, how == "late"
        self.when, self.lost = when, lost
        self.strategy = strategy
        self.devices, self.seconds, self.memory = [], [], []
        if how in ("again", "near", "late"):
            self.how = "kill"
        self.killed = lost if self.how in ("kill", "new") else []
        if how == "both":
            self.killed = lost[1:]
        if how in ("echo", "both"):
            self.how, self.failing = "stop", ["join", "change"]
            self.join, members().join = members().join, self.fails_once
            self.change = strategy.change_devices
            strategy.change_devices = self.fails_once_more
        if how == "again":
            self.join, members().join = members().join, self.joined

    def joined(self, tasks):
        """Another worker dies while one is taken back."""
        self.join(tasks)
        self.local.workers[1 - self.lost[0]].kill()

    def fails_once(self, tasks):
        self.join(tasks)
        self.fails("join")

    def fails_once_more(self, devices):
        if "join" not in self.failing:
            self.fails("change")
        self.change(devices)

    def fails(self, what):
        if what in self.failing:
            self.failing.remove(what)
            raise tf.errors.AbortedError(None, None, "Cleanup 1")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if not self.late:
            self.fault("train", batch)
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)
        if self.epoch > self.when[1] + 1:
            # Who is back is asked for between steps.
            time.sleep(0.5 if self.how == "apart" else 0.05)
        if self.late:
            self.fault("train", batch)

    def on_test_batch_begin(self, batch, logs=None):
        self.fault("test", batch)

    def fault(self, mode, batch):
        if (mode, self.epoch, batch) == self.when and self.how != "new":
            for index in self.lost:
                if index in self.killed:
                    self.local.workers[index].kill()
                elif self.how == "stop":
                    self.local.workers[index].signal(signal.SIGSTOP)
                else:
                    self.local.part()
                    if self.how == "blink":
                        mend = self.local.end_connections
                        threading.Timer(1.0, mend).start()

    def on_epoch_end(self, epoch, logs=None):
        self.devices.append(len(self.strategy.devices))
        self.memory.append(psutil.Process().memory_info().rss >> 20)
        if epoch == self.when[1] + 1:
            for index in self.lost:
                if index in self.killed:
                    self.local.restart(index)
                elif self.how == "stop":
                    self.local.workers[index].signal(signal.SIGCONT)
                else:
                    self.local.mend()


class Saves(keras.callbacks.Callback):
    """Kills a worker before a batch, and one before the model is saved."""

    def __init__(self, local, path):
        super().__init__()
        self.local, self.path = local, path

    def on_predict_batch_begin(self, batch, logs=None):
        if batch == 2:
            self.local.workers[0].kill()

    def on_predict_batch_end(self, batch, logs=None):
        if batch == 4:
            self.local.workers[1].kill()
            self.model.save(self.path)


def main(how, split, mode, epoch, batch, *lost):
    plain = network()
    x, y = data()
    options = {
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "shuffle": False,
        "verbose": 0,
        "validation_data": (x, y),
    }
    together = local_workers(2, threads=1)
    parting = how in ("apart", "blink")
    with parted_workers() if parting else together as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        shares = [(2, 1, 1), (1, 1, 2)]
        if how == "new":
            local.workers[int(lost[0])].kill()
            strategy = convpar.ConvParallelStrategy(
                connect_timeout=3.0, min_workers=1
            )
            shares = [(2, 1), (1, 2)]
        else:
            strategy = convpar.ConvParallelStrategy()
        plain = network()
        slower = keras.callbacks.LearningRateScheduler(
            lambda epoch: 1e-3 * 0.5**epoch
        )
        expected = plain.fit(x, y, callbacks=[slower], **options).history
        with strategy.scope():
            ways = ["filters", "samples"] if split == "mixed" else [split] * 2
            plan = {
                name: {"split": way, "shards": share}
                for name, way, share in zip(
                    ("first", "second"), ways, shares, strict=True
                )
            }
            model = convpar.parallelize(network(), plan)
        fault = Fault(
            how,
            local,
            (mode, int(epoch), int(batch)),
            list(map(int, lost)),
            strategy,
        )
        elastic = convpar.callbacks.Elastic(every=1e-3)
        if how == "near":
            elastic = convpar.callbacks.Elastic(every=1e3, neighbours=1e-3)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found = model.fit(
                x, y, callbacks=[elastic, slower, fault], **options
            ).history
        after = model.evaluate(x, y, callbacks=[elastic], verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "saved.keras")
            predicted = model.predict(
                x,
                batch_size=BATCH,
                callbacks=[elastic, Saves(local, path)],
                verbose=0,
            )
            saved = keras.saving.load_model(path)
        out = {
            "history": found,
            "expected_history": expected,
            "weights": [w.tolist() for w in model.get_weights()],
            "expected_weights": [w.tolist() for w in plain.get_weights()],
            "slots": [
                np.asarray(v).tolist() for v in model.optimizer.variables
            ],
            "expected_slots": [
                np.asarray(v).tolist() for v in plain.optimizer.variables
            ],
            "devices": fault.devices,
            "again": re.findall(r"making (\d+) steps again", said.getvalue()),
            "seconds": fault.seconds,
            "failing": getattr(fault, "failing", []),
            "memory": fault.memory,
            "after": after,
            "expected_after": plain.evaluate(x, y, verbose=0),
            "saved": [w.tolist() for w in saved.get_weights()],
            "predicted": float(
                np.abs(predicted - plain.predict(x, verbose=0)).max()
            ),
        }
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
