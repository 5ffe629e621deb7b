"""Batch normalization and noise of samples on several devices."""

import collections
import itertools

import by_samples
import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import between
from by_samples import centre
from by_samples import conv
from by_samples import curvature
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from cases import but_slow
from cases import by_turns
from cases import slow
from tensorflow.python.ops import op_selector

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.placement import SampleLayout
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout

L = keras.layers
IMAGE = (6, 6, 3)
# The chief has no samples; then one device has almost all.
SHARES = {"chief without": (0, 3, 1), "uneven": (1, 9, 2), "two": (1, 1, 0)}


def plan(shares):
    return {".*": {"split": "samples", "shards": shares}}


def weights(model):
    """All but seeds, in the one order that both models have."""
    return [np.asarray(v) for v in model.variables if "seed" not in v.path]


def fitted(model, x, y, batch=4):
    """Losses and weights after some steps, of which one has fewer samples."""
    model.compile(keras.optimizers.SGD(0.05, 0.9), "mse", jit_compile=False)
    history = model.fit(
        x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0
    )
    return [np.asarray(history.history["loss"]), *weights(model)]


def both(layer, strategy, shares=(2, 1, 3), shape=IMAGE, **kwargs):
    model = shaken(between(layer, shape))
    rng = np.random.default_rng(7)
    for variable in model.non_trainable_variables:
        if "moving" in variable.path:
            variable.assign(rng.uniform(0.5, 2, variable.shape))
    parallel = split(model, strategy, plan(shares), **kwargs)
    found = by_samples.layouts(parallel, numbers((5, *shape)))
    assert isinstance(found[layer.name], SampleLayout)
    return model, parallel


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_moments_of_all_samples(shares, strategy, float64):
    model, parallel = both(L.BatchNormalization(momentum=0.7), strategy, shares)
    # Of one sample all devices but one have none.
    for batch in (7, 2, 1):
        x = 3 + 2 * numbers((batch, *IMAGE))
        same(slopes(parallel, x), slopes(model, x), 1e-10)
        same(weights(parallel), weights(model), 1e-12)
        # By moving statistics.
        ours = slopes(parallel, x, training=False)
        same(ours, slopes(model, x, training=False), 1e-10)


@pytest.mark.parametrize(
    ("follows", "ways"),
    by_turns([None, "relu", "silu"], ["samples", "filters"]),
)
def test_float32_is_as_near_as_that_of_keras(ways, follows, strategy):
    """Here the compiled ops serve, if they were built."""

    def made():
        def function(y):
            y = L.BatchNormalization(momentum=0.7)(y)
            return y if follows is None else L.Activation(follows)(y)

        return shaken(between(function, (6, 6, 9)))

    model = made()
    shards = (2, 1, 3) if ways == "samples" else None
    split_so = {"split": ways, **({"shards": shards} if shards else {})}
    parallel = split(model, strategy, {".*": split_so})
    x = 3 + 2 * numbers((7, 6, 6, 9)).astype("float32")
    keras.config.set_dtype_policy("float64")
    try:
        exact = made()
    finally:
        keras.config.set_dtype_policy("float32")
    exact.set_weights(model.get_weights())
    best = slopes(exact, x.astype("float64"))
    for ours, plain, wide in zip(
        slopes(parallel, x), slopes(model, x), best, strict=True
    ):
        errors = [
            np.abs(np.asarray(a, "float64") - wide).max() for a in (ours, plain)
        ]
        assert errors[0] <= 3 * errors[1] + 1e-6 * np.abs(wide).max()


def test_moments_in_training(strategy, float64):
    """The last of three steps has samples for one device."""
    model, parallel = both(L.BatchNormalization(), strategy, (1, 9, 2))
    x, y = numbers((9, *IMAGE)), numbers((9, 6, 6, 2), 1)
    same(fitted(parallel, x, y), fitted(model, x, y), 1e-9)


CASES = {
    "no scale": {"scale": False},
    "no centre": {"center": False},
    "neither": {"scale": False, "center": False},
    "frozen": {"trainable": False},
    "rows": {"axis": 1},
    "columns": {"axis": -2, "epsilon": 0.1},
}


@pytest.mark.parametrize("case", CASES)
def test_normalizations_of_all_kinds(case, strategy, float64):
    layer = L.BatchNormalization(momentum=0.7, **CASES[case])
    model, parallel = both(layer, strategy)
    x = 3 + 2 * numbers((5, *IMAGE))
    before = weights(model)
    same(slopes(parallel, x), slopes(model, x), 1e-10)
    same(weights(parallel), weights(model), 1e-12)
    moved = any(
        not np.array_equal(a, b)
        for a, b in zip(before, weights(model), strict=True)
    )
    assert moved == (case != "frozen")
    ours = slopes(parallel, x, training=False)
    same(ours, slopes(model, x, training=False), 1e-10)


def test_normalization_after_an_lstm_and_of_rows(strategy, float64):
    x = keras.Input((6, 3))
    y = L.BatchNormalization()(conv(rank=1)(x))
    y = L.BatchNormalization()(L.LSTM(3)(y))
    model = shaken(keras.Model(x, y))
    parallel = split(model, strategy)
    x = numbers((5, 6, 3))
    same(slopes(parallel, x), slopes(model, x), 1e-9)
    same(weights(parallel), weights(model), 1e-11)


def test_samples_are_not_normalized_one_by_one(strategy, float64):
    layer = L.BatchNormalization(axis=0, name="joined")
    model = shaken(between(layer, IMAGE, batch=5))
    parallel = split(model, strategy)
    x = numbers((5, *IMAGE))
    same(slopes(parallel, x), slopes(model, x))
    assert by_samples.layouts(parallel, x)["joined"] is None


def test_large_means_keep_their_digits(strategy):
    """Sums of squares in float32 would lose a variance beside its mean."""
    layer = L.BatchNormalization(epsilon=1e-9)
    x = keras.Input(IMAGE)
    eye = conv(3, kernel_initializer=centre)
    model = keras.Model(x, layer(eye(x)))
    parallel = split(model, strategy, plan((1, 9, 2)))
    images = (1000 + numbers((8, *IMAGE))).astype("float32")
    ours = np.asarray(parallel(images, training=True))
    wide = images.astype("float64")
    mean, deviation = wide.mean((0, 1, 2)), wide.std((0, 1, 2))
    np.testing.assert_allclose(ours, (wide - mean) / deviation, atol=2e-3)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_narrow_floats_are_normalized_wide(policy, strategy):
    """Squares of these images are beyond float16."""
    keras.mixed_precision.set_dtype_policy(policy)
    x = keras.Input(IMAGE)
    y = L.BatchNormalization(momentum=0.5)(
        conv(3, kernel_initializer=centre)(x)
    )
    model = keras.Model(x, L.Activation("tanh", dtype="float32")(y))
    parallel = split(model, strategy, wire_dtype="bfloat16")
    images = (500 * numbers((6, *IMAGE))).astype("float32")
    ours = np.asarray(parallel(images, training=True))
    theirs = np.asarray(model(images, training=True))
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, theirs, atol=0.03)
    same(weights(parallel)[-2:], weights(model)[-2:], 1e-2)


def branches(x):
    """A normalization with an activation, as it is, and in sums."""
    y = L.BatchNormalization(momentum=0.7)(x)
    z = L.BatchNormalization(momentum=0.7)(conv(3)(y))
    total = L.Add()([y, x])
    return L.Concatenate()(
        [
            L.ReLU()(y),
            L.ReLU(6)(y),
            L.ReLU()(total),
            L.Activation("silu")(z),
            L.ReLU()(L.Add()([z, y])),
            L.Average()([z, y]),
        ]
    )


ALONE = {
    "relu": lambda y: L.ReLU()(L.BatchNormalization()(y)),
    "silu": lambda y: L.Activation("silu")(L.BatchNormalization()(y)),
    "tanh": lambda y: L.Activation("tanh")(L.BatchNormalization()(y)),
    "sum": lambda y: L.ReLU()(L.Add()([L.BatchNormalization()(y), y])),
    "sum of two": lambda y: L.ReLU()(
        L.Add()([L.BatchNormalization()(y), L.BatchNormalization()(conv(3)(y))])
    ),
    "sum of three": lambda y: L.Add()([L.BatchNormalization()(y), y, y]),
    "all": branches,
}


def centred(function):
    eye = conv(3, kernel_initializer=centre)
    x = keras.Input(IMAGE)
    return keras.Model(x, conv(2)(function(eye(x))))


@pytest.mark.parametrize(
    ("case", "ways"),
    but_slow(
        itertools.product(ALONE, ["samples", "filters"]),
        [("all", "samples"), ("sum", "filters")],
    ),
)
def test_what_follows_is_computed_with_it(case, ways, strategy, float64):
    """Gradients through one result of a normalization, and through several."""
    model = shaken(centred(ALONE[case]))
    parallel = split(model, strategy, {".*": ways})
    for batch in (7, 2):
        x = 3 + 2 * numbers((batch, *IMAGE))
        same(slopes(parallel, x), slopes(model, x), 1e-9)
    same(weights(parallel), weights(model), 1e-11)
    x, y = numbers((9, *IMAGE)), numbers((9, 6, 6, 2), 1)
    same(fitted(parallel, x, y), fitted(model, x, y), 1e-7)


@pytest.mark.skipif(not ops.load(), reason="this is about the compiled ops")
def test_a_pass_of_its_own_for_what_follows_is_saved(strategy):
    """Maps are normalized and activated by one op on each device."""
    model = centred(lambda y: L.ReLU()(L.BatchNormalization()(y)))
    parallel = split(model, strategy, {".*": "samples"})

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(parallel(x, training=True) ** 2)
        return tape.gradient(loss, parallel.trainable_variables[0])

    graph = step.get_concrete_function(tf.TensorSpec((6, *IMAGE))).graph
    kinds = collections.Counter(op.type for op in graph.get_operations())
    assert kinds["TfConvpar>ScaleChannels"] == 3
    assert kinds["TfConvpar>ActivatedGradient"] == 3
    assert kinds["Relu"] == kinds["ReluGrad"] == 0


class ByMoments(L.BatchNormalization):
    """With right second derivatives, which those of `tf.nn.moments` are not."""

    def call(self, x, training=None, mask=None):
        mean = tf.reduce_mean(x, (0, 1, 2))
        variance = tf.reduce_mean((x - mean) ** 2, (0, 1, 2))
        factor = self.gamma.value * tf.math.rsqrt(variance + self.epsilon)
        return (x - mean) * factor + self.beta.value


def of_two(kind):
    return centred(
        lambda y: L.ReLU()(
            L.Add()([kind()(y), kind()(L.Activation("tanh")(y))])
        )
    )


@pytest.mark.parametrize("ways", ["samples", "filters"])
def test_second_derivatives(ways, strategy, float64):
    model = shaken(of_two(ByMoments))
    plain = of_two(L.BatchNormalization)
    plain.set_weights(model.get_weights())
    parallel = split(plain, strategy, {".*": ways})
    x = tf.constant(numbers((5, *IMAGE)))

    same(curvature(parallel, x), curvature(model, x), 1e-8)


@pytest.mark.parametrize(
    ("ways", "traced"),
    [
        ("samples", "model"),
        slow(("samples", "slope")),
        slow(("filters", "slope")),
        slow(("filters", "model")),
    ],
)
def test_second_derivatives_of_functions(ways, traced, strategy, float64):
    """No tape says at first that there are any."""

    def alone(kind):
        x = keras.Input(IMAGE)
        return keras.Model(x, L.ReLU()(kind()(conv(3)(x))))

    model, plain = shaken(alone(ByMoments)), alone(L.BatchNormalization)
    plain.set_weights(model.get_weights())
    parallel = split(plain, strategy, {".*": ways})
    x = tf.constant(numbers((5, *IMAGE)))
    same(curvature(parallel, x, traced), curvature(model, x), 1e-8)


@pytest.mark.parametrize(
    ("case", "shares"),
    by_turns(["relu", "sum of two", "all"], [(2, 1, 3), (0, 2, 1)]),
)
def test_own_moments(case, shares, strategy, float64):
    """As of replicas, each with its part of the samples."""
    model = shaken(centred(ALONE[case]))
    parallel = split(model, strategy, plan(shares), moments="own")
    x = 3 + 2 * numbers((6, *IMAGE))
    ends = [round(6 * sum(shares[: i + 1]) / sum(shares)) for i in range(3)]
    parts = [part for part in np.split(x, ends[:-1]) if len(part)]
    each = [slopes(model, part) for part in parts]
    y, dx, *by_weights = zip(*each, strict=True)
    expected = [np.concatenate(y), np.concatenate(dx), *map(sum, by_weights)]
    same(slopes(parallel, x), expected, 1e-9)
    inference = slopes(parallel, x, training=False)
    model.set_weights(parallel.get_weights())
    same(inference, slopes(model, x, training=False), 1e-9)


def test_moving_statistics_of_own_moments_are_of_all(strategy, float64):
    model = shaken(centred(ALONE["relu"]))
    parallel = split(model, strategy, plan((2, 1, 3)), moments="own")
    for batch in (7, 2):
        x = 3 + 2 * numbers((batch, *IMAGE))
        slopes(parallel, x)
        slopes(model, x)
    same(weights(parallel), weights(model), 1e-12)


def test_own_moments_stay_when_shares_move(strategy, float64):
    model = shaken(centred(ALONE["relu"]))
    parallel = split(model, strategy, plan((2, 1, 3)), moments="own")
    parallel.compile("sgd", "mse", jit_compile=False)
    how = HowSplit.of(parallel, strategy.devices)
    x = 3 + 2 * numbers((6, *IMAGE))
    before = slopes(parallel, x)
    relayout(parallel, convpar.merge(parallel), how, strategy)
    same(slopes(parallel, x), before, 1e-10)


def test_moments_of_no_kind(strategy):
    with pytest.raises(ValueError, match="Expected `moments`.*'mine'"):
        split(centred(ALONE["relu"]), strategy, moments="mine")


def test_tracing_does_not_walk_through_the_model(strategy, monkeypatch):
    """What each device has of the samples is known behind half of a model."""
    walked = []
    walk = op_selector.get_backward_walk_ops

    def counted(*args, **kwargs):
        walked.append(len(walk(*args, **kwargs)))
        return walk(*args, **kwargs)

    monkeypatch.setattr(op_selector, "get_backward_walk_ops", counted)
    x = inputs = keras.Input((8, 8, 3))
    for _ in range(4):
        x = keras.layers.Conv2D(4, 3, padding="same")(x)
    # Has no rule: samples are joined here, and cut again.
    x = keras.layers.Permute((2, 1, 3))(x)
    x = keras.layers.Conv2D(4, 3, padding="same")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.SpatialDropout2D(0.5)(x)
    parallel = split(keras.Model(inputs, x), strategy, {".*": "samples"})
    step = tf.function(
        lambda x: parallel(x, training=True),
        input_signature=[tf.TensorSpec((None, 8, 8, 3))],
    )
    step.get_concrete_function()
    assert walked
    # Where all of the model is walked through, it is 147.
    assert max(walked) < 60
