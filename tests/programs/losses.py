"""Run as the chief of a cluster: 20 steps, plain and split, per optimizer.

Arguments: `smooth` or `kinked`, a dtype policy, and optimizers, all if none is
named. Smooth is tanh and average
pooling. Kinked is ReLU and max pooling, where the last bit of a sum decides
now and then which way a gradient goes: exact in float64, but in float32 two
runs that differ in the order of a sum drift apart from there.

Prints one JSON object: optimizer -> largest relative difference of the losses,
and the first and last; and the devices that took part.
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
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(),
    "rmsprop": lambda: keras.optimizers.RMSprop(),
}
SHARDS = {"first": (9, 7, 4), "second": (30, 13, 17)}

kind, policy, *names = sys.argv[1:]
strategy = convpar.ConvParallelStrategy()  # Before any variable.

from models import StepLosses  # noqa: E402
from models import largest_difference  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

keras.config.set_dtype_policy(policy)
keras.config.set_floatx(policy)
activation = "tanh" if kind == "smooth" else "relu"
pooling = getattr(
    keras.layers,
    "AveragePooling2D" if kind == "smooth" else "MaxPooling2D",
)
digits = load_digits()
x = tf.image.resize(digits.images[:640, :, :, None] / 16, (32, 32)).numpy()
x = x.astype(policy)
y = digits.target[:640]


def network(parallel, optimizer):
    keras.utils.set_random_seed(1)

    def conv(filters, name):
        if not parallel:
            return keras.layers.Conv2D(filters, 5, activation=activation)
        return convpar.ConvParallel2D(
            filters, 5, activation=activation, shards=SHARDS[name]
        )

    model = keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            conv(20, "first"),
            pooling(2),
            conv(60, "second"),
            pooling(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
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
for name in names or OPTIMIZERS:
    make = OPTIMIZERS[name]
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
