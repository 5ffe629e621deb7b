"""Run as a chief with a folder, and perhaps a step to be killed after, once.

Says each step and prints, at the end, one JSON object: the steps that it made,
the model's weights and its loss.
"""

import json
import os
import pathlib
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import keras
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar

EPOCHS, STEPS, BATCH, EVERY = 3, 8, 8, 4
# Seconds of a step, so that who watches can kill in time.
SLOW = float(os.environ.get("SLOW", "0"))


class Steps(keras.callbacks.Callback):
    def __init__(self, killed, mark):
        super().__init__()
        self.killed, self.mark, self.steps = killed, mark, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.killed and not self.mark.exists():
            self.mark.touch()
            # While replicas make the next ones.
            kill = threading.Timer(
                0.005, os.kill, (os.getpid(), signal.SIGKILL)
            )
            kill.start()
        time.sleep(SLOW)

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((self.epoch, batch))
        print("step", self.epoch, batch, flush=True)


def fit(devices=None, backup_dir=None, callbacks=()):
    """The training, here or in a test."""
    model = network(keras.optimizers.SGD(0.02))
    method = convpar.replicas.DiLoCo(
        model,
        every=EVERY,
        devices=devices,
        shares=[1.0] * 3,
        backup_dir=backup_dir,
    )
    method.fit(
        *data(),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=list(callbacks),
    )
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "loss": model.evaluate(*data(), verbose=0)[0],
    }


def main(folder, *killed):
    convpar.ConvParallelStrategy()
    steps = Steps(tuple(map(int, killed)), pathlib.Path("killed"))
    found = fit(backup_dir=folder, callbacks=[steps])
    print(json.dumps({"steps": steps.steps} | found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
