"""Lays a model out anew on a worker, again and again, and recovers replicas.

Prints one JSON object: how many parts of functions that are gone were left to
TensorFlow's runtimes after each.
"""

import gc
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar._compat.tensorflow import function_names
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout

TIMES = 4


def left(seen, devices):
    gc.collect()
    return ops.release_functions(seen - function_names(), devices)


def main():
    x, y = data()
    with local_workers(1, threads=1) as local:
        os.environ["TF_CONFIG"] = local.tf_config()
        strategy = convpar.ConvParallelStrategy()
        devices, seen, out = strategy.devices, set(), {}
        with strategy.scope():
            model = convpar.parallelize(network(), "equal")
        how, plain = HowSplit.of(model, devices), convpar.merge(model)
        for _ in range(TIMES):
            model.fit(x, y, batch_size=16, verbose=0)
            seen |= function_names()
            relayout(model, plain, how, strategy)
        out["layouts"] = left(seen, devices)
        model = network(keras.optimizers.SGD(0.02))
        method = convpar.replicas.SyncSGD(model, devices=devices)
        for _ in range(TIMES):
            method.fit(x, y, batch_size=16, verbose=0)
            seen |= function_names()
            method._make_anew()
        out["replicas"] = left(seen, devices)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
