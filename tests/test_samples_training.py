"""Models whose layers are split by samples, trained as their plain twins."""

import by_samples
import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import EVERY
from by_samples import between
from by_samples import conv
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from cases import slow

import tf_convpar as convpar
from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout

L = keras.layers
IMAGE = (6, 6, 3)
X, Y = numbers((9, *IMAGE)), numbers((9, 2), 1)

pytestmark = pytest.mark.usefixtures("float64")


def network(**kwargs):
    x = keras.Input(IMAGE)
    y = L.ReLU()(conv(**kwargs)(x))
    y = L.BatchNormalization()(L.Add()([y, conv(4)(y)]))
    y = L.Dropout(0.3, seed=5)(L.MaxPooling2D()(y))
    y = L.GlobalAveragePooling2D()(conv(3)(y))
    return shaken(keras.Model(x, L.Dense(2)(y)))


def small(**kwargs):
    x = keras.Input(IMAGE)
    y = L.ReLU()(conv(2, **kwargs)(x))
    return shaken(keras.Model(x, L.GlobalAveragePooling2D()(y)))


def trained(model, optimizer):
    """Losses and weights; 9 samples are 4, 4 and 1."""
    model.compile(optimizer, "mse", jit_compile=False)
    history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    weights = [np.asarray(v) for v in model.variables if "seed" not in v.path]
    return [np.asarray(history.history["loss"]), *weights]


def test_fit_evaluate_and_predict(strategy):
    model = network()
    parallel = split(model, strategy)
    ours, theirs = (
        [
            *trained(one, keras.optimizers.SGD(0.05, 0.9)),
            np.asarray(one.evaluate(X, Y, batch_size=4, verbose=0)),
            one.predict(X, batch_size=4, verbose=0),
        ]
        for one in (parallel, model)
    )
    same(ours, theirs, 1e-9)
    assert ours[0][1] < ours[0][0]


OPTIMIZERS = {
    "clipped": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "clipped in all": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "accumulated": lambda: keras.optimizers.SGD(
        0.05, gradient_accumulation_steps=2
    ),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_what_optimizers_do_with_gradients(case, strategy):
    model = small()
    parallel = split(model, strategy)
    ours = trained(parallel, OPTIMIZERS[case]())
    same(ours, trained(model, OPTIMIZERS[case]()), 1e-10)


def test_regularizers(strategy):
    model = small(kernel_regularizer="l2", activity_regularizer="l1")
    parallel = split(model, strategy)
    same(slopes(parallel, X), slopes(model, X))
    assert len(parallel.losses) == 2
    same(trained(parallel, "sgd"), trained(model, "sgd"), 1e-10)


@pytest.mark.parametrize("case", [L.ReLU, L.MaxPooling2D, L.BatchNormalization])
def test_activity_between_convolutions(case, strategy):
    model = shaken(between(case(activity_regularizer="l2"), IMAGE))
    parallel = split(model, strategy)
    same(slopes(parallel, X), slopes(model, X))
    assert len(parallel.losses) == 1


def test_a_loop_of_ones_own(strategy):
    def loop(model):
        optimizer = keras.optimizers.SGD(0.05, 0.9)

        @tf.function(reduce_retracing=True)
        def step(x, y):
            with tf.GradientTape() as tape:
                error = model(x, training=True) - y
                loss = tf.reduce_mean(tf.square(error))
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(grads, model.trainable_variables)
            return loss

        # The smallest has samples for one of three devices.
        losses = [float(step(X[:n], Y[:n])) for n in (9, 1, 5)]
        return [np.asarray(losses), *map(np.asarray, model.trainable_variables)]

    model = small()
    parallel = split(model, strategy)
    same(loop(parallel), loop(model), 1e-9)


def mixed():
    x = keras.Input(IMAGE)
    y = L.ReLU()(conv(5, name="filters")(x))
    y = L.BatchNormalization()(conv(4, name="samples")(y))
    y = L.BatchNormalization()(conv(6, name="others")(y))
    y = conv(4, name="uneven")(y)
    y = L.ReLU()(conv(5, name="again")(y))
    return shaken(keras.Model(x, conv(3, name="chief")(L.MaxPooling2D()(y))))


MIXED = {
    "filters": (3, 2),
    "samples": {"split": "samples", "shards": (2, 1, 3)},
    "others": {"split": "samples", "shards": (0.5, 0, 1.5)},
    "uneven": "samples",
    "again": (1, 0, 4),
    "chief": None,
}


def test_from_filters_to_samples_and_back(strategy):
    model = mixed()
    parallel = split(model, strategy, MIXED)
    for batch in (7, 2):
        same(slopes(parallel, X[:batch]), slopes(model, X[:batch]), 1e-10)
    found = by_samples.layouts(parallel, X)
    kinds = [type(found[name]) for name in MIXED]
    assert kinds == [Layout, *[SampleLayout] * 3, Layout, type(None)]
    assert found["others"].shares == (250, 750)
    y = numbers((9, 3, 3, 3))
    models = []
    for other in (parallel, model):
        other.compile(keras.optimizers.SGD(0.02), "mse", jit_compile=False)
        other.fit(X, y, batch_size=4, shuffle=False, verbose=0)
        models.append([np.asarray(v) for v in other.variables])
    same(*models, 1e-9)
    merged = convpar.merge(parallel)
    for ours, theirs in zip(merged.variables, parallel.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("plans", [EVERY, {"a": (2, 1, 1), "b": "samples"}])
def test_layers_at_two_places(plans, strategy):
    """Of shards of either kind, and of a tensor on the chief."""
    x = keras.Input(IMAGE)
    norm, relu, shared = L.BatchNormalization(), L.ReLU(), conv(4)
    first, second = conv(name="a")(x), conv(name="b")(x)
    merged = L.Add()([relu(norm(first)), relu(norm(second))])
    y = shared(merged) + shared(L.Permute((2, 1, 3))(second))
    model = shaken(keras.Model(x, [relu(y), y]))
    parallel = split(model, strategy, plans)
    for _ in range(2):
        same(slopes(parallel, X), slopes(model, X), 1e-10)
    same(
        [np.asarray(v) for v in parallel.variables],
        [np.asarray(v) for v in model.variables],
    )


def test_models_within_models(strategy):
    inner = keras.Sequential([conv(4), L.BatchNormalization(), conv(3)])
    x = keras.Input(IMAGE)
    deep = keras.Model(x, inner(L.ReLU()(conv(3)(x))))
    model = shaken(
        keras.Sequential([keras.Input(IMAGE), deep, L.ReLU(), inner, conv(2)])
    )
    parallel = split(model, strategy)
    same(slopes(parallel, X), slopes(model, X), 1e-10)


def test_several_inputs_and_outputs(strategy):
    """One goes to shards, one comes from them and is used in them as well."""
    x, other = keras.Input(IMAGE), keras.Input((6, 6, 4))
    maps = conv(4)(x)
    y = L.Concatenate()([maps, other, L.Activation("tanh")(other)])
    features = L.GlobalMaxPooling2D()(conv(3)(y))
    model = shaken(keras.Model([x, other], [maps, features, L.Dense(1)(maps)]))
    parallel = split(model, strategy)
    inputs = X, numbers((9, 6, 6, 4), 4)
    same(slopes(parallel, *inputs), slopes(model, *inputs), 1e-10)
    # Programs differentiate by what left the graph.
    for other in (parallel, model):
        with tf.GradientTape() as tape:
            maps, features, _ = other(inputs)
            loss = tf.reduce_sum(features**2)
        other.slope = np.asarray(tape.gradient(loss, maps))
    same([parallel.slope], [model.slope])


def test_features_of_a_layer(strategy):
    model = network()
    parallel = split(model, strategy)
    for i in (2, 4, 5):
        ours, theirs = (
            keras.Model(m.input, m.layers[i].output) for m in (parallel, model)
        )
        same([ours.predict(X, verbose=0)], [theirs.predict(X, verbose=0)])


def test_another_precision_between(strategy):
    keras.config.set_dtype_policy("mixed_float16")
    x = keras.Input(IMAGE, dtype="float32")
    y = L.Activation("softmax", dtype="float32")(conv(4)(x))
    y = L.Activation("tanh", dtype="float64")(y)
    model = keras.Model(x, conv(3)(y))
    parallel = split(model, strategy)
    found = by_samples.layouts(parallel, X)
    assert all(isinstance(v, SampleLayout) for v in list(found.values())[1:])
    ours, theirs = parallel(X), model(X)
    assert ours.dtype == theirs.dtype == tf.float16
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


@pytest.mark.parametrize("samples", [slow(9), 5])
def test_another_precision_between_with_batches_of_unknown_size(
    samples, strategy
):
    """The last one leaves some devices without a sample."""
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input(IMAGE),
            conv(4),
            L.BatchNormalization(dtype="float32"),
            L.Dropout(0.5, seed=3),
            conv(3),
            L.GlobalAveragePooling2D(),
            L.Dense(1, dtype="float32"),
        ]
    )
    parallel = split(model, strategy)
    images = X[:1].repeat(samples, 0)
    data = tf.data.Dataset.from_tensor_slices((images, np.ones((samples, 1))))
    losses = []
    for one in (parallel, model):
        one.compile("sgd", "mse")
        history = one.fit(data.batch(4), epochs=2, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=2e-2)


def test_gradients_of_complex_tensors(strategy):
    class Spectrum(L.Layer):
        works_per_sample = True

        def call(self, x):
            x = tf.cast(tf.transpose(x, [0, 3, 1, 2]), tf.complex128)
            return tf.signal.fft2d(x)

    class Size(L.Layer):
        def call(self, x):
            return tf.abs(x)

    model = keras.Sequential(
        [keras.Input(IMAGE), conv(4), Spectrum(), Size(), L.Flatten()]
    )
    found = []
    for one in (split(model, strategy), model):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(one(X))
        gradient, *_ = tape.gradient(value, one.trainable_variables)
        found.append(tf.convert_to_tensor(gradient))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


def test_a_variable_that_keras_does_not_know(strategy):
    class Scale(L.Layer):
        works_per_sample = True

        def __init__(self):
            super().__init__()
            self.factor = tf.Variable(2.0, dtype="float64")

        def call(self, x):
            return x * self.factor

    model = keras.Sequential([keras.Input(IMAGE), conv(4), Scale(), conv(2)])
    parallel = split(model, strategy)
    targets = numbers((9, *model.output_shape[1:]), 2)
    losses = []
    for one in (parallel, model):
        one.compile("sgd", "mse")
        history = one.fit(X, targets, batch_size=4, epochs=2, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_the_summary_shows_samples(strategy):
    parallel = split(mixed(), strategy, MIXED)
    lines = []
    parallel.summary(print_fn=lines.append)
    table = lines[1].split("\n")

    def row(name):
        return next(line for line in table if line.startswith(f"│ {name} "))

    assert "3 on CPU:0, 2 on CPU:1" in row("filters")
    assert (
        "2 of 6 samples on CPU:0, 1 of 6 samples on CPU:1, "
        "3 of 6 samples on CPU:2" in row("samples")
    )
    assert "250 of 1000 samples on CPU:0" in row("others")
    assert "chief" in lines[2]
