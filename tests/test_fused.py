"""Normalization on one device together with what surrounds it.

Values and gradients of the ops against NumPy in float64; models against plain
Keras, whose layers are the same ones without it.
"""

import dataclasses

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from cases import slow
from test_ops_channels import SHAPES
from test_ops_channels import near
from test_ops_channels import numbers
from test_ops_channels import wide

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.sharding import Fused

L = keras.layers
ACTIVATIONS = {
    "linear": (lambda u: u, np.ones_like),
    "relu": (lambda u: np.maximum(u, 0), lambda u: (u > 0) * 1.0),
    "relu6": (
        lambda u: np.clip(u, 0, 6),
        lambda u: ((u > 0) & (u < 6)) * 1.0,
    ),
    "gelu": (
        lambda u: u * scipy.special.ndtr(u),
        lambda u: (
            scipy.special.ndtr(u)
            + u * np.exp(-np.square(u) / 2) / np.sqrt(2 * np.pi)
        ),
    ),
    "silu": (
        lambda u: u / (1 + np.exp(-u)),
        lambda u: (1 + np.exp(-u) + u * np.exp(-u)) / (1 + np.exp(-u)) ** 2,
    ),
}


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_of_the_ops(shape, activation, native):
    value, slope = ACTIVATIONS[activation]
    x, dy = 4 * numbers(shape, 1), numbers(shape, 2)
    s, t, o, b, e = (numbers(shape[-1:], seed) for seed in (3, 4, 5, 6, 7))
    x64, dy64, s64, t64, o64, b64, e64 = wide(x, dy, s, t, o, b, e)
    options = {"activation": activation, "native": native}
    one = ops.scale_channels([x], [s], o, **options)
    near(one, value(x64 * s64 + o64))
    two = ops.scale_channels([x, dy], [s, t], o, **options)
    near(two, value(x64 * s64 + dy64 * t64 + o64))
    g = dy64 * slope(x64 * s64 + o64)
    axes = tuple(range(len(shape) - 1))
    sums = ops.activated_sums(dy, x, t, s, o, **options)
    near(sums, [g.sum(axes), (g * (x64 - t64)).sum(axes)], 1e-5)
    dx = ops.activated_gradient(dy, x, s, o, b, e, **options)
    near(dx, g * s64 + x64 * b64 + e64)


def test_silu_where_exponentials_are_large_or_nothing(native):
    u = np.float32([[-1e4], [-100], [-87], [-20], [0], [20], [90], [1e4]])
    ones, zeros = np.ones(1, "float32"), np.zeros(1, "float32")
    y = ops.scale_channels([u], [ones], zeros, activation="silu", native=native)
    with np.errstate(over="ignore"):
        expected = u.astype("float64") / (1 + np.exp(-u.astype("float64")))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-33)
    dx = ops.activated_gradient(
        *(np.ones_like(u), u, ones, zeros, zeros, zeros, "silu"),
        native=native,
    )
    assert np.isfinite(dx).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_no_number_stays_none(activation, native):
    """Else training that has diverged would go on as if it had not."""
    x = tf.constant(np.float32([[np.nan] * 9, [1.0] * 9]))
    ones, zeros = tf.ones(9), tf.zeros(9)
    how = {"activation": activation, "native": native}
    found = ops.scale_channels([x], [ones], zeros, **how)
    assert np.isnan(found[0]).all()
    assert not np.isnan(found[1]).any()
    kernel = np.eye(9, dtype="float32")[None, None]
    after = ops.Epilogue(bias=zeros, activation=activation)
    y = ops.convolution(x[None, None], kernel, after, native=native)
    assert np.isnan(y[0, 0, 0]).all()


def test_a_convolution_keeps_what_is_no_number():
    layer = convpar.ConvParallel2D(
        4, 3, activation="relu", algorithm="winograd"
    )
    images = np.full((2, 9, 9, 3), np.nan, "float32")
    images[1] = 1
    y = layer(images).numpy()
    assert np.isnan(y[0]).all()
    assert not np.isnan(y[1]).any()


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_ops_have_gradients(activation):
    """As those of their twins."""
    x, dy = numbers((3, 4, 5), 1), numbers((3, 4, 5), 2)
    rows = [numbers((5,), seed) for seed in (3, 4, 5, 6)]

    def found(native):
        given = [tf.constant(v) for v in (dy, x, *rows)]
        options = {"activation": activation, "native": native}
        with tf.GradientTape() as tape:
            tape.watch(given)
            g, m, *row = given
            out = [
                ops.scale_channels([m, g], row[:2], row[2], **options),
                ops.activated_sums(g, m, *row[:3], **options),
                ops.activated_gradient(g, m, *row, **options),
            ]
            total = tf.add_n([tf.reduce_sum(tf.square(v)) for v in out])
        return tape.gradient(total, given)

    for a, b in zip(found(None), found(False), strict=True):
        near(a, b, 1e-5)


def network():
    """A sum of two normalized maps, of one and a plain one, and others."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((9, 9, 3))
    x = L.Conv2D(6, 3, use_bias=False, padding="same")(inputs)
    x = plain = L.ReLU(6.0)(L.BatchNormalization(name="first")(x))
    x = L.BatchNormalization(scale=False)(L.Conv2D(6, 3, padding="same")(x))
    x = L.Conv2D(6, 3, padding="same")(L.Activation("swish")(x))
    x = L.Add()([plain, L.BatchNormalization(center=False)(x)])
    x = shortcut = L.Activation("relu", name="middle")(x)
    x = L.BatchNormalization()(L.Conv2D(6, 1)(x))
    x = L.ReLU()(L.Add()([L.BatchNormalization()(shortcut), x]))
    # Not fused: another activation, a sum of three, another's frozen weights.
    x = L.Activation("tanh")(L.BatchNormalization()(x))
    frozen = L.BatchNormalization()
    frozen.trainable = False
    x = L.Add()([x, shortcut, L.ReLU()(frozen(x))])
    outputs = L.Dense(4)(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss)
    return model


def data():
    return numbers((48, 9, 9, 3), 1), np.arange(48) % 4


@pytest.mark.parametrize("eager", [False, slow(True)])
def test_a_model_learns_as_plain_keras(eager):
    plain = network()
    fused = convpar.parallelize(network(), algorithm="auto")
    count = sum(isinstance(vars(x).get("call"), Fused) for x in fused.layers)
    # Normalizations, sums, activations, a product, a mean of all.
    assert count == 7 + 3 + 5 + 1 + 1
    histories = []
    for model in (plain, fused):
        model.compile(model.optimizer, model.loss, run_eagerly=eager)
        options = {"batch_size": 12, "shuffle": False, "verbose": 0}
        histories.append(model.fit(*data(), epochs=3, **options).history)
    assert histories[0]["loss"][-1] < histories[0]["loss"][0]
    np.testing.assert_allclose(
        histories[0]["loss"], histories[1]["loss"], rtol=2e-6
    )
    for a, b in zip(plain.get_weights(), fused.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    x, _ = data()
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), fused.predict(x, verbose=0), atol=1e-5
    )


def needed(graph):
    """Kinds of the operations that the results are made of."""
    found, left = {}, [*graph.outputs]
    while left:
        tensor = left.pop()
        op = tensor.op
        # Of these, TensorFlow computes each by itself.
        each = op.type == "IdentityN"
        key = (op, tensor.value_index) if each else op
        if key not in found:
            found[key] = op.type
            left += [op.inputs[tensor.value_index]] if each else op.inputs
    return [*found.values()]


def test_a_step_makes_no_result_that_nobody_uses():
    """A normalization before an activation costs one op of scaling."""
    inputs = keras.Input((9, 9, 4))
    x = L.BatchNormalization()(L.Conv2D(4, 3)(inputs))
    model = keras.Model(inputs, L.ReLU()(x))
    fused = convpar.parallelize(model, algorithm="auto")
    step = tf.function(lambda x: fused(x, training=True), autograph=False)
    spec = tf.TensorSpec((2, 9, 9, 4))
    graph = step.get_concrete_function(spec).graph
    names = [op.type for op in graph.get_operations()]
    assert names.count("TfConvpar>ScaleChannels") == 2
    kinds = needed(graph)
    assert kinds.count("TfConvpar>ScaleChannels") == 1
    assert "Relu" not in kinds


def test_a_bias_before_a_normalization_has_no_gradient_to_add_up():
    """It is nothing, which a sum of what rounding left is not."""
    inputs = keras.Input((9, 9, 4))
    x = L.BatchNormalization()(L.Conv2D(4, 3, name="nothing")(inputs))
    x = L.Conv2D(5, 3, name="some")(L.ReLU()(x))
    frozen = L.BatchNormalization(trainable=False)
    model = keras.Model(inputs, L.Activation("tanh")(frozen(x)))
    fused = convpar.parallelize(model, algorithm="auto")

    def slopes(model, x):
        biases = [model.get_layer(n).bias for n in ("nothing", "some")]
        with tf.GradientTape() as tape:
            score = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(score, [biases[0].value, biases[1].value])

    x = tf.constant(numbers((4, 9, 9, 4), 1))
    step = tf.function(lambda x: slopes(fused, x), autograph=False)
    nothing, some = step(x)
    assert not nothing.numpy().any()
    expected = slopes(model, x)
    assert np.abs(expected[0]).max() < 1e-4 * np.abs(expected[1]).max()
    near(some / np.abs(some).max(), expected[1] / np.abs(some).max(), 1e-5)
    kinds = needed(step.get_concrete_function(x).graph)
    assert kinds.count("BiasAddGrad") == 1


def test_without_auto_layers_stay_keras():
    model = convpar.parallelize(network(), algorithm="direct")
    assert not any(isinstance(vars(x).get("call"), Fused) for x in model.layers)


@pytest.mark.parametrize("name", ["first", "middle"])
def test_programs_differentiate_by_what_is_between(name):
    """As Grad-CAM does."""
    x, _ = data()
    found = []
    for model in (
        network(),
        convpar.parallelize(network(), algorithm="auto"),
    ):
        at = model.get_layer(name).output
        both = keras.Model(model.inputs, [at, model.outputs[0]])
        with tf.GradientTape() as tape:
            maps, outputs = both(x)
            score = tf.reduce_sum(outputs[:, 0])
        found.append(tape.gradient(score, maps))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
    assert np.abs(found[0]).max() > 0


def test_second_derivatives():
    """A penalty of gradients, which TensorFlow's own ops compute.

    Not beside Keras: `tf.nn.moments` stops the gradient of the mean within the
    variance, so its second derivatives are wrong.
    """
    inputs = keras.Input((5, 5, 3))
    normalization = L.BatchNormalization()
    outputs = L.Activation("swish")(normalization(inputs))
    model = keras.Model(inputs, outputs)
    fused = convpar.parallelize(model, algorithm="auto")
    assert isinstance(vars(fused.layers[1])["call"], Fused)
    x = tf.constant(numbers((4, 5, 5, 3), 1))
    weights = [tf.constant(numbers((3,), seed)) for seed in (2, 3)]

    def plain(x, gamma, beta):
        mean = tf.reduce_mean(x, [0, 1, 2])
        variance = tf.reduce_mean(tf.square(x - mean), [0, 1, 2])
        u = (x - mean) * tf.math.rsqrt(variance + 1e-3) * gamma + beta
        return u * tf.sigmoid(u)

    def layers(x, gamma, beta):
        return fused(x, training=True)

    for variable, value in zip(
        fused.layers[1].trainable_variables, weights, strict=True
    ):
        variable.assign(value)
    found = []
    for function in (plain, layers):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.reduce_sum(tf.square(function(x, *weights)))
            slope = inner.gradient(score, x)
            penalty = tf.reduce_sum(tf.square(slope))
        found.append(outer.gradient(penalty, x).numpy())
    near(found[1], found[0], 1e-5)


@dataclasses.dataclass
class Swish:
    """An activation without a hash."""

    beta: float = 1.5

    def __call__(self, x):
        return x * keras.ops.sigmoid(self.beta * x)


@pytest.mark.parametrize("split", [False, True])
def test_activations_without_a_hash(split, strategy):
    plain = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation=Swish()),
            keras.layers.Activation(Swish()),
        ]
    )
    with strategy.scope():
        model = convpar.parallelize(plain, "equal" if split else {})
    fused = convpar.parallelize(plain, algorithm="auto")
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    for one in (model, fused):
        np.testing.assert_allclose(
            one.predict(x, verbose=0),
            plain.predict(x, verbose=0),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("kind", ["Concatenate", "Multiply", "Add"])
def test_integers_beside_feature_maps(kind):
    """Keras gives both a common dtype."""
    image = keras.Input((8, 8, 3))
    mask = keras.Input((8, 8, 4), dtype="uint8")
    y = keras.layers.Conv2D(4, 3, padding="same")(image)
    y = keras.layers.BatchNormalization()(y)
    y = getattr(keras.layers, kind)()([y, mask])
    plain = keras.Model([image, mask], keras.layers.Conv2D(2, 1)(y))
    model = convpar.parallelize(plain, algorithm="auto")
    rng = np.random.default_rng(0)
    x = [
        rng.normal(size=(4, 8, 8, 3)).astype("float32"),
        rng.integers(0, 2, (4, 8, 8, 4)).astype("uint8"),
    ]
    for one in (plain, model):
        one.compile(keras.optimizers.SGD(0.1), "mse")
    losses = [
        one.fit(x, np.ones((4, 8, 8, 2)), epochs=2, verbose=0).history["loss"]
        for one in (model, plain)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    np.testing.assert_allclose(
        *(one.predict(x, verbose=0) for one in (model, plain)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_files_know_nothing_of_it(tmp_path):
    model = convpar.parallelize(network(), algorithm="auto")
    model.fit(*data(), verbose=0)
    x, _ = data()
    expected = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    convpar.export(model, tmp_path / "served")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    served = tf.saved_model.load(tmp_path / "served")
    for found in (loaded.predict(x, verbose=0), served.serve(x)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    merged = convpar.merge(model)
    assert not any(
        isinstance(vars(x).get("call"), Fused) for x in merged.layers
    )
