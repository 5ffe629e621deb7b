"""What the copies of `Elastic` cost a training in which nothing happens.

    python benchmarks/faults/overhead.py

A chief and two workers on this machine train VGG16 with Adam, in turns without
copies and with one every few seconds.
"""

import os
import statistics
import time

import keras
import numpy as np

import tf_convpar as convpar
from tf_convpar.callbacks import snapshot
from tf_convpar.cluster.local_cluster import local_workers

PIXELS, BATCH, STEPS, ROUNDS, EVERY_S = 64, 16, 16, 4, 4.0


class Steps(keras.callbacks.Callback):
    """Counts copies, and times from the first step's end to the last's."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        """Notes when."""
        self.ends.append(time.perf_counter())


def main():
    with local_workers(2, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        with strategy.scope():
            model = keras.applications.VGG16(
                weights=None, input_shape=(PIXELS, PIXELS, 3), classes=10
            )
            loss = keras.losses.SparseCategoricalCrossentropy()
            model.compile(keras.optimizers.Adam(1e-4), loss)
            model = convpar.parallelize(model, "equal")
        rng = np.random.default_rng(0)
        x = rng.normal(size=(STEPS * BATCH, PIXELS, PIXELS, 3)).astype("f")
        y = rng.integers(0, 10, len(x))
        copies = []
        begin = snapshot.Snapshot.begin

        def counted(self, *args):
            copies.append(time.perf_counter())
            begin(self, *args)

        snapshot.Snapshot.begin = counted
        took = {False: [], True: []}
        for number in range(2 * ROUNDS + 1):
            elastic = number % 2 == 1
            steps = Steps()
            own = [convpar.callbacks.Elastic(every=EVERY_S)] if elastic else []
            model.fit(x, y, BATCH, verbose=0, callbacks=[*own, steps])
            if number:
                # The first two steps of a `fit` trace, or copy at once.
                took[elastic].append(steps.ends[-1] - steps.ends[2])
        state = snapshot.state_of(model)
        size = sum(np.prod(v.shape) * 4 for v in state)
        without, with_ = map(statistics.median, (took[False], took[True]))
        each = (with_ - without) / (len(copies) / ROUNDS)
        print(
            f"{size / 1e6:.0f} MB of state; {STEPS - 3} steps take "
            f"{without:.2f} s ({min(took[False]):.2f} to "
            f"{max(took[False]):.2f}) without copies, {with_:.2f} s "
            f"({min(took[True]):.2f} to {max(took[True]):.2f}) with "
            f"{len(copies) / ROUNDS:.1f}: {each:.2f} s for each, "
            f"{each / 30:.1%} of every 30 s"
        )


if __name__ == "__main__":
    main()
