"""A chief whose second worker becomes slow, and fast again, while it trains.

Prints shares, decisions and the timeline, and state beside that of plain Keras.
Run with the name of what cuts the layers.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile

import keras
from elastic import BATCH
from elastic import data
from elastic import network

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.process import Process

MOST_EPOCHS = 400
# Many steps of Adam make rounding errors large.
keras.config.set_floatx("float64")


# Stops a process four fifths of the time, as a quota does. By a process of its
# own: TensorFlow holds Python up while it waits for a worker.
SLOW = (
    "trap 'kill -CONT {0}; exit' TERM; while kill -STOP {0}; do sleep .04; "
    "kill -CONT {0}; sleep .01; done"
)


class Course(keras.callbacks.Callback):
    """Slows the worker down, lets it go once shares moved, and ends."""

    def __init__(self, rebalance, local):
        super().__init__()
        self.rebalance, self.local = rebalance, local
        self.slow = None
        self.shares, self.count, self.phase = [], 0, "first"

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1
        if self.phase == "first" and epoch == 8:
            self.next("slow")
            command = SLOW.format(self.local.workers[1].pid)
            self.slow = Process(["sh", "-c", command])
        elif self.phase == "slow" and self.ratio() > 2:
            self.next("fast again")
            self.slow.signal(signal.SIGTERM)
            self.slow.wait(10)
        elif self.phase == "fast again" and self.ratio() < 2:
            # One that is lost takes its share with it.
            self.next("lost")
            self.local.workers[0].kill()
        elif self.phase == "lost":
            self.model.stop_training = True

    def ratio(self):
        """How much slower the worker was at the last change."""
        made = self.rebalance.decisions
        return list(made[-1].slower.values())[2] if made else 1.0

    def next(self, phase):
        layer = self.model.get_layer("second")
        self.phase = phase
        self.shares.append([s / sum(layer.shards) for s in layer.shards])


def main(split):
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    with (
        tempfile.TemporaryDirectory() as folder,
        local_workers(2, threads=1) as local,
    ):
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        plain = network()
        x, y = data()
        with strategy.scope():
            plan = {"split": split, "shards": (1, 1, 1)}
            model = convpar.parallelize(network(), {".*": plan})
        rebalance = convpar.callbacks.Rebalance(every=0.3, cooldown=1.0)
        elastic = convpar.callbacks.Elastic(every=1.0)
        course = Course(rebalance, local)
        line = pathlib.Path(folder) / "line"
        lines = convpar.callbacks.Timeline(line)
        model.fit(
            *(x, y),
            epochs=MOST_EPOCHS,
            callbacks=[lines, elastic, rebalance, course],
            validation_data=(x, y),
            **options,
        )
        plain.fit(x, y, epochs=course.count, **options)
        found = model.evaluate(x, y, verbose=0)
        print(
            json.dumps(
                {
                    "shares": course.shares,
                    "decisions": [
                        [d.step, list(d.slower.values()), d.saves, str(d)]
                        for d in rebalance.decisions
                    ],
                    "devices": len(strategy.devices),
                    "weights": [w.tolist() for w in model.get_weights()],
                    "expected": [w.tolist() for w in plain.get_weights()],
                    "loss": found[0],
                    "expected_loss": plain.evaluate(x, y, verbose=0)[0],
                    "epochs": course.count,
                    "timeline": json.loads(
                        line.with_suffix(".json").read_text()
                    ),
                }
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
