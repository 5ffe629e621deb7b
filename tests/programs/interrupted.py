"""Run with `new` or `same`: Ctrl-C ends `fit`, and a worker dies in the next.

Weights are set in between, and the next `fit` has an `Elastic` of
its own, or the first one's. Prints one JSON object: history and weights, and
those of plain Keras; and how many threads there were.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers

OPTIONS = {"batch_size": 16, "shuffle": False, "verbose": 0}


class At(keras.callbacks.Callback):
    """Does something before a step of an epoch."""

    def __init__(self, epoch, batch, do):
        super().__init__()
        self.when, self.do = (epoch, batch), do

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            self.do()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def main(which):
    x, y = data(96)
    with local_workers(1, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        plain = network()
        with strategy.scope():
            model = convpar.parallelize(network(), "equal")
        threads = [threading.active_count()]
        elastic = convpar.callbacks.Elastic(every="1h")
        for own in ([], [elastic]):
            callbacks = [*own, At(1, 3, interrupt)]
            try:
                one = model if own else plain
                one.fit(x, y, epochs=2, callbacks=callbacks, **OPTIONS)
                raise AssertionError("not interrupted")
            except KeyboardInterrupt:
                pass
        # One that asks workers has its answer first.
        end = time.monotonic() + 5
        while threading.active_count() > threads[0] and time.monotonic() < end:
            time.sleep(0.05)
        threads.append(threading.active_count())
        weights = [0.5 * w + 0.01 for w in plain.get_weights()]
        for one in (plain, model):
            one.set_weights(weights)
        if which == "new":
            elastic = convpar.callbacks.Elastic(every="1h")
        killed = At(1, 3, local.workers[0].kill)
        found = model.fit(
            x, y, epochs=3, callbacks=[elastic, killed], **OPTIONS
        )
        expected = plain.fit(x, y, epochs=3, **OPTIONS)
        out = {
            "history": found.history,
            "expected_history": expected.history,
            "weights": [w.tolist() for w in model.get_weights()],
            "expected_weights": [w.tolist() for w in plain.get_weights()],
            "threads": threads,
        }
    print(json.dumps(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
