"""The networks that tests train, plain and parallel."""

import keras
import numpy as np

import tf_convpar as convpar


class StepLosses(keras.callbacks.Callback):
    """The loss of every training step.

    Keras logs the mean since the epoch began, in float32: taking that apart
    again would cost the digits that are to be compared.
    """

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])


def conv(parallel, filters, size, shards, **kwargs):
    if parallel:
        return convpar.ConvParallel2D(filters, size, shards=shards, **kwargs)
    return keras.layers.Conv2D(filters, size, **kwargs)


def small_cnn(parallel, optimizer="sgd", seed=1, input_shape=(16, 16, 1), **kw):
    """Two convolutions, cut unevenly, one of them with an empty shard."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(input_shape),
            conv(parallel, 10, 3, (5, 3, 2), activation="relu", **kw),
            keras.layers.MaxPooling2D(),
            conv(parallel, 12, 3, (1.0, 0.0, 2.0), padding="same", **kw),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def train(model, images, epochs=3, **kwargs):
    """Step losses of training without shuffling."""
    x, y = images
    recorder = StepLosses()
    model.fit(
        x,
        y,
        batch_size=32,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[recorder],
        **kwargs,
    )
    return np.array(recorder.losses)


def largest_difference(a, b):
    """Relative to the larger of the two, over all steps."""
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))))
