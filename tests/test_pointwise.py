"""The op of pointwise convolutions, and the layers that use it in inference."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_fused import needed
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar import ops

L = keras.layers
ACTIVATIONS = {
    "linear": lambda u: u,
    "relu": lambda u: np.maximum(u, 0),
    "relu6": lambda u: np.clip(u, 0, 6),
    "silu": lambda u: u / (1 + np.exp(-u)),
}
# Panels that are full or not, more rows than a band, one row, none.
SHAPES = [
    ((1, 7, 7, 96), 48),
    ((3, 9, 9, 33), 100),
    ((2, 30, 31, 16), 64),
    ((5, 7), 3),
    ((1, 300), 33),
    ((0, 3, 3, 4), 5),
]


@pytest.fixture(autouse=True)
def native():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("shape", "filters"), SHAPES)
def test_values(shape, filters, activation):
    x, k = numbers(shape, 1), numbers((shape[-1], filters), 2)
    vectors = numbers((2, filters), 3)
    for scale, offset in itertools.product(
        (None, vectors[0]), (None, vectors[1])
    ):
        expected = x.astype("float64") @ k
        expected = expected if scale is None else expected * scale
        expected = expected if offset is None else expected + offset
        expected = ACTIVATIONS[activation](expected)
        for native in (True, False):
            y = ops.pointwise(x, k, scale, offset, activation, native=native)
            assert y.shape == expected.shape
            near(y, expected, 1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation):
    given = [numbers(s, i) for i, s in enumerate([(2, 5, 5, 6), (6, 4), 4, 4])]
    found = []
    for native in (True, False):
        values = [tf.constant(v) for v in given]
        with tf.GradientTape() as outer:
            outer.watch(values)
            with tf.GradientTape() as tape:
                tape.watch(values)
                y = ops.pointwise(*values, activation, native=native)
            first = tape.gradient(y, values, y)
            total = tf.add_n([tf.reduce_sum(g * g) for g in first])
        found.append([*first, *outer.gradient(total, values)])
    for a, b in zip(*found, strict=True):
        near(a, b.numpy(), 1e-4)


def test_in_float64_gradients_are_exact():
    """The twin's; that of the compiled op is the same formula."""
    values = [
        tf.constant(numbers(s, i), tf.float64)
        for i, s in enumerate([(2, 3, 3, 4), (4, 5), 5, 5])
    ]

    def run(*values):
        return ops.pointwise(*values, "silu")

    theory, numeric = tf.test.compute_gradient(run, values, delta=1e-5)
    for a, b in zip(theory, numeric, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.assign(v * 2.0),
        lambda v: v.assign_sub(tf.ones_like(v)),
        lambda v: v.scatter_nd_update([[0, 0, 0, 0]], [7.0]),
        lambda v: v.assign(tf.identity(v)),
    ],
    ids=["assigned", "in place", "a number of it", "the same again"],
)
@pytest.mark.parametrize("by", ["product", "winograd"])
def test_a_kernel_that_changes_is_read_anew(change, by):
    window = (1, 1) if by == "product" else (3, 3)
    x, k = numbers((2, 6, 6, 8), 1), tf.Variable(numbers((*window, 8, 40), 2))
    algorithm = "gemm" if by == "product" else "winograd"

    @tf.function
    def predict():
        return convpar.algorithms.convolve(
            tf.constant(x), k, algorithm=algorithm, remember=True
        )

    for _ in range(3):
        near(predict(), tf.nn.convolution(x, k).numpy(), 1e-5)
        near(predict(), tf.nn.convolution(x, k).numpy(), 1e-5)
        change(k)


def test_refuses_what_does_not_fit():
    x, k = numbers((2, 3), 1), numbers((4, 5), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected images"):
        ops.pointwise(x, k, native=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of 5 values"):
        ops.pointwise(numbers((2, 4), 1), k, np.ones(3, "float32"), native=True)


def model():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 6, 96))
    x = L.Conv2D(80, 1, strides=2, use_bias=False)(inputs)
    x = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.Conv2D(72, 1, activation="relu")(x)
    x = L.SeparableConv2D(40, 3, padding="same")(x)
    x = L.Activation("silu")(L.BatchNormalization()(x))
    made = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    for layer in made.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.moving_mean.assign(numbers(layer.moving_mean.shape, 5))
            layer.moving_variance.assign_add(
                np.abs(numbers(layer.moving_mean.shape, 6))
            )
    return made


def test_models_predict_as_those_of_keras_before_and_after_they_learn():
    plain = model()
    fast = convpar.parallelize(model(), algorithm="auto")
    x, y = numbers((6, 5, 6, 96), 1), numbers((6, 40), 2)
    for one in (plain, fast):
        one.compile("sgd", "mse")
    predict = tf.function(
        lambda x: fast(x, training=False), autograph=False
    ).get_concrete_function(tf.TensorSpec((6, 5, 6, 96)))
    # What follows is a part of each; as they are they are not needed.
    kinds = needed(predict.graph)
    assert kinds.count("TfConvpar>Pointwise") == 3
    assert not {"Relu6", "TfConvpar>ScaleChannels"} & {*kinds}
    for _ in range(2):
        near(fast.predict_on_batch(x), plain.predict(x, verbose=0), 1e-5)
        near(predict(tf.constant(x)), plain.predict(x, verbose=0), 1e-5)
        for one in (plain, fast):
            one.fit(x, y, batch_size=6, epochs=2, verbose=0)
    for a, b in zip(plain.get_weights(), fast.get_weights(), strict=True):
        near(b, a, 1e-5)
