"""Run with methods of replicas: each loses a worker, and gets it back.

The first one's is killed, the second one's hang, and so on in turn.

Prints one JSON object: for each method the tasks that replicas are on in each
epoch, the losses, the seconds of each step, and the weights at the end. With
`undisturbed` beside them: the same replicas, by trainings without a fault.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import tensorflow as tf
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar import replicas
from tf_convpar.cluster.local_cluster import local_workers

EPOCHS, STEPS = 4, 8
# Before the third step of the second epoch, and after the third epoch.
KILLED, RESTARTED = (1, 3), 2
LOST = 0


class Fault(keras.callbacks.Callback):
    """Kills workers or lets them hang, and has them back later."""

    def __init__(self, local, method, lost, hang):
        super().__init__()
        self.hang = hang
        self.local, self.method, self.lost = local, method, lost
        self.tasks, self.seconds = [], []
        self.inner, method._replica = method._replica, self.replica
        self.echoed = 0

    def replica(self, *args):
        """What they had left fails two calls when they return, as it may."""
        if self.seconds and self.echoed < 2:
            self.echoed += 1
            raise tf.errors.AbortedError(None, None, "Cleanup 1")
        return self.inner(*args)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == KILLED:
            for index in self.lost:
                if self.hang:
                    self.local.workers[index].signal(signal.SIGSTOP)
                else:
                    self.local.workers[index].kill()
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)

    def on_epoch_end(self, epoch, logs=None):
        self.tasks.append([task_of(d) for d in self.method.devices])
        if epoch == RESTARTED:
            for index in self.lost:
                if self.hang:
                    self.local.workers[index].signal(signal.SIGCONT)
                else:
                    self.local.restart(index)


def task_of(device):
    return int(device.partition("/device")[0].rpartition(":")[2])


# An exchange under way at each step, since others log but once a round; and
# each is kept, so that workers are lost in the midst of that too.
OPTIONS = {"DiLoCo": {"every": 2, "fragments": 2, "wire": "int8"}}
FOLDER = tempfile.TemporaryDirectory()
OPTIONS["DiLoCo"]["backup_dir"] = FOLDER.name


def made(name, model, devices):
    return getattr(replicas, name)(
        model,
        devices=devices,
        shares=[1.0] * len(devices),
        **OPTIONS.get(name, {}),
    )


def fit(method, steps, epochs=1, callbacks=()):
    return method.fit(
        *data(),
        batch_size=8,
        epochs=epochs,
        steps_per_epoch=steps,
        callbacks=list(callbacks),
        # Keras asks all tasks of the cluster whether they have finished.
        validation_data=data(),
        verbose=0,
    )


def disturbed(name, local, workers, lost, hang):
    extra = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = network(keras.optimizers.SGD(0.02), extra)
    if name == "SyncSGD":
        model = network(keras.optimizers.SGD(0.02))
    method = made(name, model, workers)
    fault = Fault(local, method, lost, hang)
    before = model.evaluate(*data(), verbose=0)[0]
    history = fit(method, STEPS, EPOCHS, [fault]).history
    weights = [w.tolist() for w in model.get_weights()]
    after = model.evaluate(*data(), verbose=0)[0]
    return {
        "tasks": fault.tasks,
        "seconds": fault.seconds,
        "echoed": fault.echoed,
        "steps": int(model.optimizer.iterations),
        "losses": [before, *history["loss"]],
        "after": after,
        "weights": weights,
        "between": between(method, local, lost[0]),
    }


def between(method, local, index):
    """A worker dies while nobody trains, and returns later."""
    local.workers[index].kill()
    evaluated = method.evaluate(*data(), verbose=0)[0]
    tasks = [[task_of(d) for d in method.devices]]
    for returns in (False, True):
        if returns:
            local.restart(index)
        fit(method, 2)
        tasks.append([task_of(d) for d in method.devices])
    # And dies before a `fit`.
    local.workers[index].kill()
    fit(method, 2)
    tasks.append([task_of(d) for d in method.devices])
    local.restart(index)
    fit(method, 2)
    return {"evaluated": evaluated, "tasks": tasks}


def undisturbed(workers):
    """SyncSGD by the replicas that are there before, after and then again."""
    model = network(keras.optimizers.SGD(0.02))
    left = workers[1:]
    first = KILLED[0] * STEPS + KILLED[1]
    second = (RESTARTED + 1) * STEPS - first
    for devices, steps in (
        (workers, first),
        (left, second),
        ([*left, workers[LOST]], STEPS),
    ):
        fit(made("SyncSGD", model, devices), steps)
    return {"weights": [w.tolist() for w in model.get_weights()]}


def main():
    out = {}
    with local_workers(3, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        workers = [name for name in strategy.devices if "worker" in name]
        out["undisturbed"] = undisturbed(workers)
        for number, name in enumerate(sys.argv[1:]):
            # Two at once, for one of them.
            lost = [0, 2] if number == 1 else [number % len(workers)]
            found = disturbed(name, local, workers, lost, number % 2 == 1)
            out[name] = found | {"lost": lost}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
