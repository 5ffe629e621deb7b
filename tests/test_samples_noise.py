"""Noise for samples on several devices is that of one device."""

import by_samples
import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import centre
from by_samples import conv
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from cases import but_slow

import tf_convpar as convpar
from tf_convpar.placement import SampleLayout

L = keras.layers
IMAGE = (6, 6, 3)


DRAWN = {
    "dropout": lambda: L.Dropout(0.4, seed=3),
    "rows": lambda: L.Dropout(0.4, noise_shape=(None, 6, 1, 3), seed=3),
    "channels": lambda: L.SpatialDropout2D(0.4, seed=3),
    "alpha": lambda: L.AlphaDropout(0.4, seed=3),
    "gaussian dropout": lambda: L.GaussianDropout(0.4, seed=3),
    "gaussian noise": lambda: L.GaussianNoise(0.4, seed=3),
}


@pytest.mark.parametrize("case", but_slow(DRAWN, list(DRAWN)[::2]))
def test_what_is_drawn_is_drawn_alike(case, strategy, float64):
    """Bit for bit, step for step, and not the same in each."""
    x = keras.Input(IMAGE)
    given = conv(3, kernel_initializer=centre)(x)
    layer = DRAWN[case]()
    model = keras.Model(x, layer(given))
    parallel = split(model, strategy)
    assert isinstance(
        by_samples.layouts(parallel, numbers((5, *IMAGE)))[layer.name],
        SampleLayout,
    )
    traced = tf.function(
        lambda x: parallel(x, training=True),
        input_signature=[tf.TensorSpec((None, *IMAGE), "float64")],
    )
    drawn = []
    for step, batch in enumerate((5, 5, 1, 12)):
        x = 1 + np.arange(batch * 108.0).reshape(batch, *IMAGE)
        theirs = np.asarray(model(x, training=True))
        ours = traced(x) if step % 2 else parallel(x, training=True)
        np.testing.assert_array_equal(ours, theirs)
        drawn.append(theirs)
    assert not np.array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(parallel(x), x)


@pytest.mark.parametrize("plan", ["equal", {".*": "samples"}])
@pytest.mark.parametrize("seed", [3_000_000_000, -5])
def test_seeds_beyond_those_of_tensorflow(seed, plan, strategy):
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            L.Conv2D(4, 3),
            L.Dropout(0.5, seed=seed),
            L.Conv2D(2, 3),
        ]
    )
    with strategy.scope():
        parallel = convpar.parallelize(model, plan)
    x = tf.ones((2, 8, 8, 3))
    ours, theirs = (
        tf.convert_to_tensor(one(x, training=True)) for one in (parallel, model)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_of_what_is_drawn(strategy, float64):
    layers = [make() for make in DRAWN.values() if make is not DRAWN["rows"]]
    x = keras.Input(IMAGE)
    y = conv()(x)
    for layer in layers:
        y = layer(y)
    model = shaken(keras.Model(x, conv(2)(y)))
    parallel = split(model, strategy)
    x = numbers((7, *IMAGE))
    for _ in range(2):
        same(slopes(parallel, x), slopes(model, x), 1e-10)
