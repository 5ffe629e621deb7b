"""Run: a replica's worker stands still for some rounds, and goes on.

Prints one JSON object: for each epoch, which is one round, the tasks that took
part and its seconds; and the accuracy that is reached.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers

STEPS, EPOCHS = 16, 6
# Epochs at whose begin the worker stands still, and goes on.
STOPPED, GOES_ON = 2, 4


class Late(keras.callbacks.Callback):
    """Stops a worker, and has it back later."""

    def __init__(self, worker, method):
        super().__init__()
        self.worker, self.method = worker, method
        self.tasks, self.seconds = [], []

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == STOPPED:
            self.worker.signal(signal.SIGSTOP)
        elif epoch == GOES_ON:
            self.worker.signal(signal.SIGCONT)
            self.method._steps_under_way.wait()
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)
        self.tasks.append(
            [own.device.partition("/device")[0] for own in self.method._present]
        )


def main():
    with local_workers(2, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        model = network(keras.optimizers.SGD(0.02))
        devices = strategy.devices
        method = convpar.replicas.DiLoCo(
            model, every=STEPS, shares=[1.0] * len(devices), patience=0.25
        )
        late = Late(local.workers[0], method)
        history = method.fit(
            *data(),
            batch_size=8,
            epochs=EPOCHS,
            steps_per_epoch=STEPS,
            callbacks=[late],
            verbose=0,
        ).history
        found = {
            "tasks": late.tasks,
            "seconds": late.seconds,
            "losses": history["loss"],
            "devices": len(method.devices),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
