"""Trains for long while workers fail at random, every few seconds.

    python benchmarks/faults/soak.py --minutes 30 --output soak.jsonl
    python benchmarks/faults/soak.py --plot soak.jsonl soak.png

A chief and three workers of this machine, killed, stopped and slowed at random,
one or more at a time; each comes back after a while. Prints the accuracy beside
that of plain Keras after as many epochs, and the memory of all tasks.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import threading
import time

import keras
import numpy as np
import psutil

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers

WORKERS, BATCH, SAMPLES = 3, 32, 512
# Seconds between two faults, and until a worker is back.
EVERY_S, BACK_S = (4.0, 10.0), (2.0, 8.0)
L = keras.layers


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            L.Conv2D(16, 3, activation="relu"),
            L.BatchNormalization(),
            L.Conv2D(32, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Dropout(0.2, seed=3),
            L.Flatten(),
            L.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    return model


def data(samples, seed):
    """Images that are brighter in one quarter, as long as noise lets see."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, samples)
    x = rng.normal(scale=2.0, size=(samples, 16, 16, 1)).astype("float32")
    for image, quarter in zip(x, y, strict=True):
        row, column = divmod(int(quarter), 2)
        image[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 0.5
    return x, y


class Faults(threading.Thread):
    """Makes workers fail, and mends them, until it is told to end."""

    def __init__(self, local, seed):
        super().__init__(daemon=True)
        self.local, self.over = local, threading.Event()
        self.random = random.Random(seed)
        self.counts = dict.fromkeys(("killed", "stopped", "two killed"), 0)
        # When each worker is back, and how it fails.
        self.down = {}

    def run(self):
        """Fails and mends, in turn."""
        due = time.monotonic() + 10.0
        while not self.over.wait(0.2):
            now = time.monotonic()
            for index, (until, how) in list(self.down.items()):
                if now >= until:
                    self.mend(index, how)
            if now >= due:
                due = now + self.random.uniform(*EVERY_S)
                self.fail(now)
        for index, (_, how) in list(self.down.items()):
            self.mend(index, how)

    def fail(self, now):
        """One worker that is well, or two."""
        well = [i for i in range(WORKERS) if i not in self.down]
        how = self.random.choice(list(self.counts))
        if len(well) < 2:
            return
        self.counts[how] += 1
        for index in self.random.sample(well, 2 if how == "two killed" else 1):
            self.down[index] = now + self.random.uniform(*BACK_S), how
            worker = self.local.workers[index]
            number = signal.SIGSTOP if how == "stopped" else signal.SIGKILL
            worker.signal(number)

    def mend(self, index, how):
        """A stopped worker goes on, another one is started in its place."""
        del self.down[index]
        if how == "stopped":
            self.local.workers[index].signal(signal.SIGCONT)
        else:
            self.local.start_again(index)


class Notes(keras.callbacks.Callback):
    """Memory after each epoch; ends after some minutes."""

    def __init__(self, faults, local, minutes, output):
        super().__init__()
        self.faults, self.local, self.output = faults, local, output
        self.end = time.monotonic() + 60 * minutes
        self.epochs, self.calm = 0, 0
        self.rows, self.start = [], time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        """Notes what all processes hold."""
        self.epochs += 1
        rows = [psutil.Process()]
        for worker in self.local.workers:
            if psutil.pid_exists(worker.pid):
                rows.append(psutil.Process(worker.pid))
        held = []
        for process in rows:
            try:
                held.append(process.memory_info().rss >> 20)
            except psutil.Error:
                held.append(0)
        row = {
            "seconds": round(time.monotonic() - self.start, 1),
            "faults": sum(self.faults.counts.values()),
            "chief_mb": held[0],
            "workers_mb": held[1:],
            **{k: round(float(v), 4) for k, v in logs.items()},
        }
        self.rows.append(row)
        with open(self.output, "a") as file:
            file.write(json.dumps(row) + "\n")
        if self.faults.over.is_set():
            self.calm += 1
            self.model.stop_training = self.calm == 3
        elif time.monotonic() >= self.end:
            # The next steps find out who is still lost.
            self.faults.over.set()
            self.faults.join()


def plot(source, target):
    """Draws memory and accuracy over the number of faults."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = pathlib.Path(source).read_text().splitlines()
    rows = [json.loads(line) for line in lines if '"chief_mb"' in line]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.5))
    faults = [row["faults"] for row in rows]
    left.plot(faults, [row["chief_mb"] for row in rows], label="chief")
    workers = [max(row["workers_mb"], default=0) for row in rows]
    left.plot(faults, workers, label="the largest worker")
    left.set(xlabel="faults", ylabel="memory (MB)", ylim=(0, None))
    left.legend()
    minutes = [row["seconds"] / 60 for row in rows]
    right.plot(minutes, [row["accuracy"] for row in rows])
    right.set(xlabel="minutes", ylabel="accuracy in training", ylim=(0, 1))
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="soak.jsonl")
    parser.add_argument("--plot", nargs=2, metavar=("ROWS", "PNG"))
    given = parser.parse_args()
    if given.plot:
        plot(*given.plot)
        return
    x, y = data(SAMPLES, 0)
    with local_workers(WORKERS, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        plain = network()
        with strategy.scope():
            model = convpar.parallelize(network(), "equal")
        faults = Faults(local, given.seed)
        notes = Notes(faults, local, given.minutes, given.output)
        elastic = convpar.callbacks.Elastic(every="3s")
        faults.start()
        options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
        try:
            model.fit(
                *(x, y),
                epochs=100_000,
                callbacks=[elastic, notes],
                **options,
            )
        finally:
            faults.over.set()
            faults.join()
        plain.fit(x, y, epochs=notes.epochs, **options)
        test = data(SAMPLES, 1)
        own = plain.evaluate(*test, verbose=0)
        loss, accuracy = convpar.merge(model).evaluate(*test, verbose=0)
        apart = max(
            np.abs(a - b).max()
            for a, b in zip(
                model.get_weights(), plain.get_weights(), strict=True
            )
        )
    tenth = next((r for r in notes.rows if r["faults"] >= 10), notes.rows[-1])
    found = {
        "epochs": notes.epochs,
        "faults": faults.counts,
        "accuracy": accuracy,
        "undisturbed": own[1],
        "loss": loss,
        "undisturbed_loss": own[0],
        "weights_apart": float(apart),
        "chief_mb_after_10_and_all": [
            tenth["chief_mb"],
            notes.rows[-1]["chief_mb"],
        ],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
