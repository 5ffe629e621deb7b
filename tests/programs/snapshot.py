"""A chief whose worker dies while a snapshot is on its way.

Prints whether that has arrived, and what the snapshot had before and has now.
"""

import json
import os
import signal
import time

import keras
import numpy as np

import tf_convpar as convpar
from tf_convpar.callbacks.snapshot import Snapshot
from tf_convpar.callbacks.snapshot import state_of
from tf_convpar.cluster.local_cluster import local_workers

L = keras.layers


def state(snapshot):
    return [float(np.sum(v)) for v in state_of(snapshot.plain)]


with local_workers(1) as local:
    os.environ["TF_CONFIG"] = local.tf_config()
    strategy = convpar.ConvParallelStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 512)),
                L.BatchNormalization(),  # On the chief.
                L.Conv2D(1024, 3, name="large"),
                L.GlobalAveragePooling2D(),
                L.Dense(2),
            ]
        )
        model = convpar.parallelize(model, "equal")
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(2, 8, 8, 512)), rng.normal(size=(2, 2))
        model.fit(x, y, verbose=0)
        snapshot = Snapshot(model)
        model.fit(x, y, verbose=0)
        snapshot.begin(model, (0, 2))
        arrived = [snapshot.arrived(wait=True)]
        before = state(snapshot)
        # Large enough for that to come first.
        model.fit(x, y, verbose=0)
        snapshot.begin(model, (0, 3))
        local.workers[0].signal(signal.SIGSTOP)
        time.sleep(1)
        local.workers[0].kill()
        arrived.append(snapshot.arrived(wait=True))
    print(
        json.dumps(
            {"arrived": arrived, "before": before, "now": state(snapshot)}
        )
    )
    # Nothing that waits for the worker.
    os._exit(0)
