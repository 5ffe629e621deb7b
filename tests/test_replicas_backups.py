"""Rounds that replicas keep, and programs that go on from them."""

import keras
import numpy as np
import pytest
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

from tf_convpar import replicas

EPOCHS, STEPS = 3, 8
EXTRA = [
    *(lambda: keras.layers.BatchNormalization(),),
    *(lambda: keras.layers.Dropout(0.3, seed=4),),
]


class Ends(keras.callbacks.Callback):
    """Ends a `fit` by an error after so many steps."""

    def __init__(self, after=None):
        super().__init__()
        self.after, self.steps = after, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.after is not None and self.epoch * STEPS + batch >= self.after:
            raise InterruptedError

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append((self.epoch, batch))


def made(optimizer, **options):
    keras.utils.clear_session(free_memory=False)
    model = network(optimizer, [layer() for layer in EXTRA])
    return replicas.DiLoCo(
        model, devices=DEVICES, shares=[1, 2, 1], **options
    )


def fit(method, after=None, epochs=EPOCHS, **options):
    ends = Ends(after)
    if after is None:
        method.fit(*data(), 8, epochs, verbose=0, callbacks=[ends], **options)
    else:
        with pytest.raises(InterruptedError):
            method.fit(*data(), 8, epochs, verbose=0, callbacks=[ends])
    return ends.steps


@pytest.mark.parametrize(
    ("optimizer", "after", "options"),
    [
        (keras.optimizers.SGD, 11, {"every": 2}),
        (keras.optimizers.Adam, 8, {"every": 4}),
        (keras.optimizers.Adam, 13, {"every": 6, "fragments": 2}),
    ],
)
def test_going_on_is_as_if_nothing_had_been(
    optimizer, after, options, tmp_path
):
    """Slots, random states, order of data, and what was on its way."""
    whole = made(optimizer(0.01), **options)
    steps = fit(whole)
    fit(made(optimizer(0.01), backup_dir=tmp_path, **options), after)
    again = made(optimizer(0.01), backup_dir=tmp_path, **options)
    left = fit(again)
    print(steps, left)
    assert left == steps[-len(left):]
    for a, b in zip(again.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
