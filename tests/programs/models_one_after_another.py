"""Makes, trains and leaves one parallel model after another.

Prints one JSON object: for each way what there was after the first model and
after two more: graphs of functions, gradients that TensorFlow keeps in a table,
objects, and how many of the models.
"""

import gc
import json
import sys
import weakref
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf
from replica_cases import data
from test_graphs import gradients
from test_graphs import graphs
from test_graphs import residual

import tf_convpar as convpar

WAYS = {
    "filters": ("equal", "direct"),
    "samples": ({".*": "samples"}, "auto"),
}


def used(strategy, plan, algorithm):
    x, y = data()
    with strategy.scope():
        model = convpar.parallelize(residual(), plan, algorithm=algorithm)
    # A last batch of another size, smaller than the cluster.
    few = slice(0, 9)
    model.fit(x[few], y[few], batch_size=4, epochs=1, verbose=0)
    model.evaluate(x[few], y[few], batch_size=4, verbose=0)
    model.predict(x[few], batch_size=4, verbose=0)
    return weakref.ref(model)


def counted(models):
    return [
        len(graphs()),
        len(gradients()),
        len(gc.get_objects()),
        sum(model() is not None for model in models),
    ]


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 3,
    )
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1", "CPU:2"])
    found = {}
    for name, way in WAYS.items():
        used(strategy, *way)
        first = counted([])
        models = [used(strategy, *way) for _ in range(2)]
        found[name] = [first, counted(models)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
