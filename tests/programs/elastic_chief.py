"""Run with a folder or `-`, and a step to be killed in if it is empty.

Prints one JSON object: the weights and slots that training ended with, and in
which epochs and steps callbacks were.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import conftest  # noqa: F401 (four devices)
import keras
import numpy as np
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar

EPOCHS, BATCH = 4, 16


class Killed(keras.callbacks.Callback):
    """By itself, as no handler can."""

    def __init__(self, when):
        super().__init__()
        self.when, self.steps = when, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((self.epoch, batch))
        if [self.epoch, batch] == self.when:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, *when):
    here = ["CPU:0", "CPU:1", "CPU:2"]
    strategy = convpar.ConvParallelStrategy(
        devices=None if "TF_CONFIG" in os.environ else here
    )
    with strategy.scope():
        extra = [
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3, seed=4),
        ]
        model = network(keras.optimizers.Adam(0.01), extra)
        model = convpar.parallelize(model, "equal")
    begun = os.path.exists(folder) and os.listdir(folder)
    killed = Killed([] if begun else list(map(int, when)))
    callbacks = [killed]
    if folder != "-":
        callbacks.insert(0, convpar.callbacks.Elastic(folder, every=1e-3))
    x, y = data()
    model.fit(
        *(x, y),
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    state = [*model.weights, *model.optimizer.variables]
    print(
        json.dumps(
            {
                "state": [np.asarray(v).tolist() for v in state],
                "steps": killed.steps,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
