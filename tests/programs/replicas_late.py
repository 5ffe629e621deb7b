"""Run with no arguments: a worker answers only after the first `fit`.

Another replica is made when all are there, and the worker is killed before its
first `fit`. Prints one JSON object: how many replicas there were in each.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import tensorflow as tf
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers


def dataset(context):
    return tf.data.Dataset.from_tensor_slices(data()).batch(8)


def main():
    found = []
    with local_workers(2, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        local.workers[1].kill()
        convpar.ConvParallelStrategy(connect_timeout=3.0, min_workers=1)
        model = network(keras.optimizers.SGD(0.02))
        method = convpar.replicas.DiLoCo(model, every=2, shares=[1, 1])
        for late in (False, True):
            if late:
                local.restart(1)
            method.fit(dataset, batch_size=8, epochs=1, verbose=0)
            found.append(len(method.replicas))
        other = convpar.replicas.SyncSGD(model, shares=[1, 1, 1])
        local.workers[1].kill()
        other.fit(dataset, batch_size=8, epochs=1, verbose=0)
        found.append(len(other.replicas))
    print(json.dumps({"replicas": found, "devices": len(set(method.devices))}))


if __name__ == "__main__":
    main()
