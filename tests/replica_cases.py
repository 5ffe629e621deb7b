"""A small network, its data and three devices of this process."""

import keras
import numpy as np
import tensorflow as tf

from tf_convpar.placement import BLOCK

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


def quadratic(size, eta, dtype="float32"):
    """`0.5 |w - x|^2`, x the sample: the gradient is `w - mean(x)`."""

    class Point(keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(size,), initializer="ones")

        def call(self, x):
            return self.w - x

    model = keras.Sequential(
        [keras.Input((size,), dtype=dtype), Point(dtype=dtype)]
    )

    def loss(y, y_pred):
        return 0.5 * keras.ops.sum(keras.ops.square(y_pred), axis=-1)

    model.compile(keras.optimizers.SGD(eta), loss)
    return model


def rounded(values, wire):
    """What a wire makes of float32 values, in blocks of 256."""
    if wire == "float32":
        return values
    if wire == "bfloat16":
        return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()
    most = {"int8": 127, "int4": 7}[wire]
    blocks = np.pad(values, (0, -len(values) % BLOCK)).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(most)
    scales[scales == 0] = 1
    numbers = blocks / scales
    # In the middle between two the last bit of float32 says which it is.
    assert np.abs(np.abs(numbers) % 1 - 0.5).min() > 2e-6
    return (np.rint(numbers) * scales).reshape(-1)[: len(values)]
