"""Whatever leaves a region, or a model, is a tensor."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns

import tf_convpar as convpar

L = keras.layers
X = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")


def network():
    keras.utils.set_random_seed(1)
    x = keras.Input((8, 8, 3))
    y = L.Conv2D(6, 3, activation="tanh", name="first")(x)
    y = L.BatchNormalization(name="normalized")(y)
    y = L.Conv2D(7, 3, name="second")(y)
    y = L.Activation("tanh", name="last")(y)
    y = L.Dense(3, name="scores")(L.GlobalAveragePooling2D()(y))
    return keras.Model(x, y)


@pytest.fixture
def models(strategy):
    model = network()
    with strategy.scope():
        return model, convpar.parallelize(model)


def same(ours, theirs):
    assert isinstance(ours, tf.Tensor)
    np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)


def test_layers_that_are_called_alone(models):
    plain, parallel = models
    a = b = tf.constant(X)
    for name in ("first", "normalized", "second", "last"):
        a = plain.get_layer(name)(a)
        b = parallel.get_layer(name)(b)
        same(b, a)
        assert len(b) == 4
        same(b[0], a[0])


@pytest.mark.parametrize(
    ("name", "graph"), by_turns(["first", "normalized", "last"], [False, True])
)
def test_scores_are_differentiated_by_feature_maps(models, name, graph):
    """As Grad-CAM does: the maps that left are those the scores are made of."""
    found = []
    for model in models:
        inner = keras.Model(
            model.inputs, [model.get_layer(name).output, model.output]
        )

        def maps_and_gradients(x, inner=inner):
            with tf.GradientTape() as tape:
                maps, scores = inner([x])
                score = scores[:, 1]
            return maps, scores, tape.gradient(score, maps)

        if graph:
            maps_and_gradients = tf.function(maps_and_gradients)
        found.append(maps_and_gradients(tf.constant(X)))
        predicted = inner.predict(X, verbose=0)
        np.testing.assert_allclose(predicted[0], found[-1][0], 1e-4, 1e-5)
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)
    assert np.abs(found[0][2]).max() > 0


class FirstRow(L.Layer):
    """Of one's own, and takes tensors apart."""

    def call(self, maps):
        return maps[:, 0] * tf.cast(tf.shape(maps)[0], maps.dtype)


def test_a_model_that_goes_on_from_a_parallel_ones_layers(models):
    """What is added takes tensors; what was there works on shards as before."""
    found = []
    for model in models:
        keras.utils.set_random_seed(2)
        maps = model.get_layer("normalized").output
        y = FirstRow()(maps) + FirstRow()(L.Conv2D(6, 3, padding="same")(maps))
        longer = keras.Model(model.inputs, [y, model.output])
        with tf.GradientTape() as tape:
            y, scores = longer([tf.constant(X)])
            loss = tf.reduce_sum(y) + tf.reduce_sum(scores)
        found.append(
            [y, scores]
            + [
                tf.convert_to_tensor(g)
                for g in tape.gradient(loss, model.trainable_variables)
            ]
        )
    for theirs, ours in zip(*found, strict=True):
        same(ours, theirs)


def test_extractors_keep_their_regions(strategy, models):
    """Feature maps between layers stay on their devices there too."""
    _, parallel = models
    inner = keras.Model(parallel.inputs, parallel.get_layer("last").output)
    step = tf.function(inner).get_concrete_function(
        [tf.TensorSpec((4, 8, 8, 3))]
    )
    joins = [
        op
        for op in step.graph.get_operations()
        if op.type in ("TfConvpar>ConcatShards", "ConcatV2")
        and op.device[-5:] == "CPU:0"
    ]
    # The chief gathers for its part of the second convolution, and at the end.
    assert len(joins) == 2


@pytest.mark.parametrize("frozen", ["before", "never"])
def test_trainable_of_the_original_reaches_the_copy(strategy, frozen):
    keras.utils.set_random_seed(1)
    base = keras.Sequential(
        [keras.Input((8, 8, 3)), L.Conv2D(6, 3), L.BatchNormalization()]
    )
    base.trainable = frozen == "never"
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, L.Dense(2)(L.Flatten()(base(x, training=False))))
    with strategy.scope():
        parallel = convpar.parallelize(model)
        again = convpar.parallelize(parallel)
    for trainable in (False, True):
        base.trainable = trainable
        for other in (parallel, again):
            assert [w.path for w in other.trainable_weights] == [
                w.path for w in model.trainable_weights
            ]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(again(X))
    for grad in tape.gradient(loss, again.trainable_weights):
        assert grad is not None
    merged = convpar.merge(parallel)
    inner = parallel.get_layer(base.name)
    inner.trainable = False
    assert base.trainable and merged.get_layer(base.name).trainable
    assert not again.get_layer(base.name).trainable


def test_the_copy_is_forgotten_with_the_model(strategy):
    """The original holds on to no copy."""
    model = network()
    with strategy.scope():
        convpar.parallelize(model)
    gc.collect()
    assert not list(vars(model.get_layer("first"))["_parallel_copies"])


class Masked(L.Conv2D):
    """A class of one's own."""


def test_summary_says_what_stays_whole_and_why(strategy):
    x = keras.Input((4, 8, 8, 3))
    y = L.TimeDistributed(L.Conv2D(6, 3, name="distributed"))(x)
    y = L.ConvLSTM2D(4, 3, name="recurrent")(y)
    y = Masked(4, 2, name="masked")(y)
    y = L.Conv2D(4, 1, name="planned")(L.Conv2D(4, 1, name="spread")(y))
    model = keras.Model(x, y)
    with strategy.scope():
        parallel = convpar.parallelize(model, {"planned": None})
    data = np.random.default_rng(0).normal(size=(2, 4, 8, 8, 3))
    np.testing.assert_allclose(
        parallel.predict(data, verbose=0),
        model.predict(data, verbose=0),
        1e-4,
        1e-5,
    )
    lines = []
    parallel.summary(print_fn=lambda line, **kw: lines.append(line))
    text = " ".join("\n".join(lines).split())
    assert "spread │ 2 on CPU:0, 1 on CPU:1, 1 on CPU:2" in text
    for name, reason in {
        "distributed": "is called by TimeDistributed",
        "recurrent": "convolves step by step",
        "masked": "derive it from convpar.ConvParallel2D",
        "planned": "the plan leaves it to the chief",
    }.items():
        assert any(
            name in line and reason in line for line in text.split("│ │")
        )
