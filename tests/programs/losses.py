"""Run as the chief of a cluster: 20 steps, plain and split, per optimizer.

Prints one JSON object: optimizer -> largest relative difference of the losses
and the two curves; and the tasks that took part.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(),
    "rmsprop": lambda: keras.optimizers.RMSprop(),
}
SHARDS = {"first": (9, 7, 4), "second": (30, 13, 17)}

strategy = convpar.ConvParallelStrategy()  # Before any variable.

from models import StepLosses  # noqa: E402
from models import largest_difference  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

digits = load_digits()
x = tf.image.resize(digits.images[:640, :, :, None] / 16, (32, 32)).numpy()
y = digits.target[:640]


def network(parallel, optimizer):
    keras.utils.set_random_seed(1)

    def conv(filters, name):
        if not parallel:
            return keras.layers.Conv2D(filters, 5, activation="relu")
        return convpar.ConvParallel2D(
            filters, 5, activation="relu", shards=SHARDS[name]
        )

    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            conv(20, "first"),
            keras.layers.MaxPooling2D(),
            conv(60, "second"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(True)
    )
    return model


def losses(model):
    recorder = StepLosses()
    model.fit(
        x,
        y,
        batch_size=32,
        shuffle=False,
        verbose=0,
        callbacks=[recorder],
    )
    return np.array(recorder.losses)


results = {}
for name, make in OPTIMIZERS.items():
    plain = losses(network(False, make()))
    with strategy.scope():
        model = network(True, make())
    split = losses(model)
    results[name] = {
        "steps": len(split),
        "difference": largest_difference(plain, split),
        "first": float(split[0]),
        "last": float(split[-1]),
    }
results["devices"] = [shard.device for shard in model.layers[0].kernel.shards]
print(json.dumps(results))
