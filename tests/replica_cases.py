"""A small network, its data and three devices of this process."""

import keras
import numpy as np

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data(samples=192):
    """Two classes of images, bright above or below."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, samples)
    x = rng.normal(scale=0.5, size=(samples, 8, 8, 1)).astype("float32")
    x[y == 0, :4] += 0.5
    x[y == 1, 4:] += 0.5
    return x, y


def network(optimizer=None, extra=()):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            *extra,
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    optimizer = optimizer or keras.optimizers.SGD(0.05)
    model.compile(optimizer, LOSS, metrics=["accuracy"])
    return model
