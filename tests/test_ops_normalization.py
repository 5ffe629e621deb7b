"""Layer and group normalization: ops, gradients, and models that have them."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from test_fused import ACTIVATIONS
from test_fused import needed
from test_ops_channels import check_that_threads_change_nothing
from test_ops_channels import near
from test_ops_channels import numbers
from test_ops_channels import wide

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.sharding import Fused

L = keras.layers
# Of one channel, an odd number, few and many, and more pixels than a block has.
SHAPES = [(3, 5, 7, 1), (2, 9, 5, 6), (7, 13), (4, 3, 3, 100), (2, 80, 8, 60)]
GROUPS = {1: 1, 6: 3, 13: 13, 100: 4, 60: 20}


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


def of(kind, channels, activation="linear"):
    """The op, as a function of maps, gamma and beta."""
    if kind == "layer":
        return lambda x, g, b, **how: ops.layer_normalization(
            x, g, b, 1e-3, **how
        )
    groups = GROUPS[channels]
    return lambda x, g, b, **how: ops.group_normalization(
        x, groups, g, b, 1e-3, activation, **how
    )


def normalized(kind, x):
    """In NumPy."""
    split, axes = x, (-1,)
    if kind == "group":
        n = x.shape[-1]
        split = x.reshape(len(x), -1, GROUPS[n], n // GROUPS[n])
        axes = (1, 3)
    mean = split.mean(axes, keepdims=True)
    deviation = np.sqrt(split.var(axes, keepdims=True) + 1e-3)
    return ((split - mean) / deviation).reshape(x.shape)


def slopes(run, given, dy):
    given = [tf.constant(value) for value in given]
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = run(*given)
    return tape.gradient(y, given, tf.constant(dy))


@pytest.mark.parametrize("kind", ["layer", "group"])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_beside_float64(kind, shape, native):
    x, dy = numbers(shape, 1, mean=2), numbers(shape, 2)
    gamma, beta = (numbers(shape[-1:], seed) for seed in (3, 4))
    run = of(kind, shape[-1])
    x64, g64, b64, dy64 = wide(x, gamma, beta, dy)
    expected = normalized(kind, x64) * g64 + b64
    near(run(x, gamma, beta, native=native), expected, 1e-5)
    near(run(x, None, None, native=native), normalized(kind, x64), 1e-5)
    found = slopes(functools.partial(run, native=native), (x, gamma, beta), dy)
    exact = slopes(run, (x64, g64, b64), dy64)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.shape == theirs.shape
        near(ours, theirs, 1e-5)
    (alone,) = slopes(lambda x: run(x, None, None, native=native), [x], dy)
    near(alone, slopes(lambda x: run(x, None, None), [x64], dy64)[0], 1e-5)


@pytest.mark.parametrize("kind", ["layer", "group"])
def test_gradients_are_those_of_keras_in_float64(kind):
    layer = {
        "layer": lambda: L.LayerNormalization(dtype="float64"),
        "group": lambda: L.GroupNormalization(4, dtype="float64"),
    }[kind]()
    x, dy = wide(numbers((4, 3, 3, 100), 1, mean=2), numbers((4, 3, 3, 100), 2))
    layer.build(x.shape)
    weights = wide(numbers((100,), 3), numbers((100,), 4))
    for variable, value in zip(layer.weights, weights, strict=True):
        variable.assign(value)
    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        y = layer(given)
    expected = tape.gradient(y, [given, layer.gamma, layer.beta], dy)
    run = of(kind, 100)
    near(run(x, *weights), y.numpy(), 1e-12)
    for ours, theirs in zip(
        slopes(run, (x, *weights), dy), expected, strict=True
    ):
        near(ours, theirs.numpy(), 1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_of_groups(activation, native):
    value, slope = ACTIVATIONS[activation]
    shape = (2, 9, 5, 6)
    x, dy = numbers(shape, 1), numbers(shape, 2)
    gamma, beta = 3 * numbers((6,), 3), numbers((6,), 4)
    x64, g64, b64, dy64 = wide(x, gamma, beta, dy)
    u = normalized("group", x64) * g64 + b64
    run = of("group", 6, activation)
    near(run(x, gamma, beta, native=native), value(u), 1e-5)
    found = slopes(functools.partial(run, native=native), (x, gamma, beta), dy)
    exact = slopes(of("group", 6), (x64, g64, b64), dy64 * slope(u))
    for ours, theirs in zip(found, exact, strict=True):
        near(ours, theirs, 1e-5)


@pytest.mark.parametrize("kind", ["layer", "group"])
def test_second_derivatives(kind):
    """Of the compiled ops those of TensorFlow's."""
    x, dy = numbers((3, 4, 4, 6), 1), numbers((3, 4, 4, 6), 2)
    gamma, beta = numbers((6,), 3), numbers((6,), 4)
    run = of(kind, 6, "silu")

    def found(native, *given):
        def penalty(*given):
            with tf.GradientTape() as tape:
                tape.watch(given)
                y = run(*given, native=native)
            first = tape.gradient(y, given, tf.cast(dy, y.dtype))
            return tf.add_n([tf.reduce_sum(tf.square(v)) for v in first])

        given = [tf.constant(value) for value in given]
        with tf.GradientTape() as tape:
            tape.watch(given)
            score = penalty(*given)
        return tape.gradient(score, given, unconnected_gradients="zero")

    expected = found(False, *wide(x, gamma, beta))
    for ours, theirs in zip(found(None, x, gamma, beta), expected, strict=True):
        near(ours, theirs, 1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("channels", [1, 5, 70])
def test_a_bias_and_an_activation(activation, channels, native):
    value, slope = ACTIVATIONS[activation]
    x, dy = numbers((3, 400, channels), 1), numbers((3, 400, channels), 2)
    bias = numbers((channels,), 3)
    x64, dy64, b64 = wide(x, dy, bias)
    how = {"activation": activation, "native": native}
    near(ops.biased(x, bias, **how), value(x64 + b64))
    passed = dy64 * slope(x64 + b64)
    for found in (
        slopes(lambda x, b: ops.biased(x, b, **how), (x, bias), dy),
        ops.biased_gradient(dy, x, bias, **how),
    ):
        near(found[0], passed)
        near(found[1], passed.sum((0, 1)), 1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_no_numbers(shape, native):
    x, gamma = tf.zeros(shape), tf.ones([4])
    for run in (
        functools.partial(ops.layer_normalization, native=native),
        functools.partial(ops.group_normalization, groups=2, native=native),
    ):
        assert run(x, gamma=gamma, beta=gamma).shape == shape
        assert slopes(lambda x, run=run: run(x), [x], x)[0].shape == shape
    by_maps, by_bias = ops.biased_gradient(x, x, gamma, "gelu", native=native)
    assert by_maps.shape == shape
    assert not by_bias.numpy().any()


PROGRAM = """
import hashlib, sys, tensorflow as tf
from tf_convpar import ops
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
x = tf.random.stateless_normal([6, 30, 30, 48], [1, 2])
g = x[0, 0, 0]
found = []
for run in (
    lambda x, g: ops.layer_normalization(x, g),
    lambda x, g: ops.group_normalization(x, 4, g, activation="relu"),
    lambda x, g: ops.biased(x, g, "gelu"),
):
    with tf.GradientTape() as tape:
        tape.watch([x, g])
        y = run(x, g)
    found += [y, *tape.gradient(y, [x, g], x)]
print([hashlib.sha256(v.numpy().tobytes()).hexdigest() for v in found])
"""


def test_threads_change_no_digit():
    check_that_threads_change_nothing(PROGRAM)


def test_what_does_not_fit():
    if not ops.load():
        pytest.skip(ops.build_report().verdict)
    x, vector = tf.zeros([2, 3, 4]), tf.zeros([4])
    for run, words in (
        (
            lambda: ops.layer_normalization(x, tf.zeros([3])),
            r"gamma of shape \[4\], a number for each channel, or \[0\]",
        ),
        (lambda: ops.layer_normalization(tf.zeros([])), "last"),
        (lambda: ops.group_normalization(x, 3), "3 groups"),
        (lambda: ops.group_normalization(x, 2, beta=x), "beta of shape"),
        (
            lambda: ops.biased_gradient(x, x[:1], vector, "relu"),
            "one shape",
        ),
    ):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)) as e:
            run()
        assert e.match(words)
        assert e.match("Expected")


def network():
    """Blocks as of ConvNeXt, and others of groups."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((9, 9, 3))
    x = L.Conv2D(6, 3)(inputs)
    x = L.LayerNormalization(epsilon=1e-6)(x)
    x = L.Activation("gelu", name="gelu")(L.Dense(24)(x))
    x = L.Dense(6)(x)
    x = L.Activation("relu")(L.GroupNormalization(3)(x))
    y = L.GroupNormalization(2, center=False, name="twice")(L.Conv2D(6, 3)(x))
    x = L.Add()([L.Activation("silu")(y), y])
    x = L.Dense(8, activation="silu")(L.LayerNormalization(scale=False)(x))
    x = L.Dense(8, activation="relu")(x)
    # Not fused: other axes.
    x = L.GroupNormalization(1, axis=1)(L.LayerNormalization(axis=[1, 2])(x))
    x = L.Dense(4, activation="softmax")(L.GlobalMaxPooling2D()(x))
    model = keras.Model(inputs, x)
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


@pytest.mark.parametrize("eager", [False, slow(True)])
def test_a_model_learns_as_plain_keras(eager):
    plain = network()
    fused = convpar.parallelize(network(), algorithm="auto")
    fuses = [x for x in fused.layers if isinstance(vars(x).get("call"), Fused)]
    for kind, count in ((L.LayerNormalization, 2), (L.GroupNormalization, 2)):
        assert sum(type(x) is kind for x in fuses) == count
    x, y = numbers((48, 9, 9, 3), 1), np.arange(48) % 4
    histories = []
    for model in (plain, fused):
        model.compile(model.optimizer, model.loss, run_eagerly=eager)
        options = {"batch_size": 12, "shuffle": False, "verbose": 0}
        histories.append(model.fit(x, y, epochs=3, **options).history["loss"])
    assert histories[0][-1] < histories[0][0]
    np.testing.assert_allclose(*histories, rtol=2e-6)
    for a, b in zip(plain.get_weights(), fused.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    # Algorithms that may be chosen are off by 40 units in each step.
    np.testing.assert_allclose(
        plain.predict(x, verbose=0), fused.predict(x, verbose=0), atol=5e-5
    )


def test_a_step_in_training_has_the_ops():
    fused = convpar.parallelize(network(), algorithm="auto")

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            score = tf.reduce_sum(fused(x, training=True)[:, 0])
        return tape.gradient(score, fused.trainable_variables)

    spec = tf.TensorSpec((2, 9, 9, 3))
    kinds = needed(step.get_concrete_function(spec).graph)
    for kind, count in (
        ("LayerNormalization", 2),
        ("LayerNormalizationGradient", 2),
        ("GroupNormalization", 2),
        ("GroupNormalizationGradient", 2),
        # Of two dense layers with `gelu` and `silu`, and of a `silu` by itself,
        # as others use its input too.
        ("BiasedGradient", 3),
    ):
        assert kinds.count(f"TfConvpar>{kind}") == count, kind
    assert "Erf" not in kinds
    assert "Erfc" not in kinds


def test_programs_differentiate_by_what_is_between():
    x = numbers((4, 9, 9, 3), 1)
    found = []
    for model in (
        network(),
        convpar.parallelize(network(), algorithm="auto"),
    ):
        for name in ("gelu", "twice"):
            at = model.get_layer(name).output
            both = keras.Model(model.inputs, [at, model.outputs[0]])
            with tf.GradientTape() as tape:
                maps, outputs = both(x, training=True)
                score = tf.reduce_sum(outputs[:, 0])
            found.append(tape.gradient(score, maps))
    for expected, ours in zip(found[:2], found[2:], strict=True):
        largest = np.abs(expected).max()
        assert largest > 0
        near(ours / largest, expected / largest, 1e-5)
