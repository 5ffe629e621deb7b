"""Activations and pooling of numbers that are no usual ones, beside TensorFlow.

Training that has diverged must be seen to, and a large number must not turn
into another.
"""

import narrower
import numpy as np
import pytest
import tensorflow as tf
from cases import slow

from tf_convpar import ops

EXTREMES = np.array(
    [-np.inf, -3.4e38, -3e38, -1e30, -1e4, -101, -89, -88.5, -88, -87.7, -87.4]
    + [-87, -40, -6, -1, -1e-40, -0.0, 0, 1e-40, 1, 6, 40, 87, 88, 89, 1e4]
    + [1e30, 3e38, 3.4e38, np.inf, np.nan],
    "float32",
)
ACTIVATIONS = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "silu": tf.nn.silu,
    "gelu": tf.nn.gelu,
}
# Channels: less than any vector, several of each width, and some left.
CHANNELS = [1, 3, 8, 16, 37]


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


def alike(actual, expected, tolerance=2e-5):
    """The same, what is no number or infinite in the same places."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    # Of gates of 1e-38, which TensorFlow takes for closed.
    np.testing.assert_allclose(actual, expected, tolerance, 1e-6)


def images(channels):
    """Each number in each channel, one for each image."""
    return np.repeat(EXTREMES, channels).reshape(-1, 1, 1, channels)


def value_and_slope(run, x):
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x)
    return y, tape.gradient(y, x)


def ways(activation, n, native):
    """Each op that has the activation, as a function of its images."""
    one, nothing = tf.ones([n]), tf.zeros([n])
    after = ops.Epilogue(bias=nothing, activation=activation)
    how = {"activation": activation, "native": native}
    return [
        lambda x: ops.scale_channels([x], [one], nothing, **how),
        lambda x: ops.scale_channels(
            [x, tf.zeros_like(x)], [one, one], nothing, **how
        ),
        lambda x: ops.biased(x, nothing, **how),
        lambda x: ops.depthwise(x, one[None, None], after, native=native),
    ]


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_their_slopes(activation, channels, native):
    x = images(channels)
    expected = value_and_slope(ACTIVATIONS[activation], x)
    for run in ways(activation, channels, native):
        value, slope = value_and_slope(run, x)
        alike(value, expected[0])
        alike(slope, expected[1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_products(activation, native):
    """Each filter has all images; of one channel, whatever it is."""
    for filters in CHANNELS:
        kernel = tf.ones([1, 1, 1, filters])
        y, dx = value_and_slope(
            lambda x, kernel=kernel: ops.convolution(
                x, kernel, ops.Epilogue(activation=activation), native=native
            ),
            images(1),
        )
        value, slope = value_and_slope(ACTIVATIONS[activation], images(filters))
        alike(y, value)
        alike(dx, tf.reduce_sum(slope, -1, keepdims=True))


NARROWER = """
import test_ops_extremes as extremes

for activation in extremes.ACTIVATIONS:
    extremes.test_activations_of_products(activation, True)
"""


@pytest.mark.parametrize("isa", [slow("base"), "avx2"])
def test_products_of_narrower_vectors(isa):
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    narrower.check(isa, NARROWER)


@pytest.mark.parametrize("kind", ["max", "average"])
@pytest.mark.parametrize("channels", [1, 8, 40])
def test_pooling(kind, channels, native):
    """Wherever in a window what is no number is, the largest is another."""
    pool = tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d
    usual = np.random.default_rng(0).normal(size=(9, 3, 3, channels))
    for number in (np.nan, np.inf, -np.inf, 3e38, -3e38):
        x = usual.astype("float32")
        x.reshape(9, 9, -1)[np.arange(9), np.arange(9)] = number
        y = ops.pool(x, (3, 3), 1, kind=kind, native=native)
        alike(y, pool(x, 3, 1, "VALID"))
    for number in (np.nan, -np.inf):
        x = np.full((1, 2, 2, channels), number, "float32")
        y = ops.pool(x, (2, 2), 1, kind=kind, native=native)
        alike(y, pool(x, 2, 1, "VALID"))
