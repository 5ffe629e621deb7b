"""Copies of models by what they are made of: all that is theirs, once."""

import functools
import io
import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.copying import Copies
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import ShardedVariable

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(3, 2, size=(24, 8, 8, 3)).astype("float32")


def copied(model):
    copies = Copies()
    new = copies.of(model)
    copies.finish(model)
    return new


def both_ways(model, strategy):
    """The parallel model, and that merged again."""
    with strategy.scope():
        parallel = convpar.parallelize(model)
    return parallel, convpar.merge(parallel)


def sequential(*layers, shape=(8, 8, 3)):
    return keras.Sequential([keras.Input(shape), *layers])


def same_predictions(model, strategy, x=X, tolerance=1e-5):
    expected = model.predict(x, verbose=0)
    for other in both_ways(model, strategy):
        np.testing.assert_allclose(
            other.predict(x, verbose=0), expected, tolerance, tolerance
        )
    return other


class Stacked(L.Layer):
    """Without a config, and with arguments that Keras cannot record."""

    def __init__(self, first, /, second):
        super().__init__()
        self.parts = [first, second]
        self.scale = None

    def build(self, shape):
        self.scale = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x * self.scale


def test_layers_without_a_config(strategy):
    def model():
        keras.utils.set_random_seed(1)
        return sequential(Stacked(L.Conv2D(6, 3), L.ReLU()), L.Conv2D(4, 3))

    original = model()
    with pytest.raises((NotImplementedError, TypeError)):
        kind = type(original.layers[0])
        kind.from_config(original.layers[0].get_config())
    same_predictions(original, strategy)
    parallel, merged = both_ways(original, strategy)
    first, second = (m.layers[0].parts[0] for m in (parallel, merged))
    assert isinstance(first.kernel._value, ShardedVariable)
    assert type(second) is L.Conv2D
    assert merged.layers[0].parts is not original.layers[0].parts


def test_what_layers_have_learnt_of_data(strategy):
    normalization = L.Normalization()
    normalization.adapt(X)
    model = sequential(normalization, L.Conv2D(6, 3), L.Flatten())
    same_predictions(model, strategy)
    lookup = L.StringLookup()
    lookup.adapt(["a", "b", "a", "c"])
    words = keras.Input((1,), dtype="string", name="words")
    images = keras.Input((8, 8, 3), name="images")
    y = L.Flatten()(L.Conv2D(6, 3)(images))
    y = L.Concatenate()([y, L.Embedding(9, 2)(lookup(words))[:, 0]])
    model = keras.Model({"words": words, "images": images}, y)
    x = {"words": np.array([["c"], ["?"], ["a"]]), "images": X[:3]}
    expected = model(x)
    for other in both_ways(model, strategy):
        np.testing.assert_allclose(other(x), expected, 1e-5, 1e-5)


class FromThere(L.Layer):
    """Holds what it uses in every way that Python has."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.by_name = {"conv": conv, "all": (conv,)}
        self.by_closure = lambda x: conv(x)
        self.by_method = self.twice
        self.by_partial = functools.partial(FromThere.applied, conv)
        self.by_function = tf.function(self.twice)
        self.log = []

    @staticmethod
    def applied(conv, x):
        return conv(x)

    def twice(self, x):
        return self.conv(x) * 2

    def ways(self, x):
        return [
            *(self.by_name["conv"](x), self.by_name["all"][0](x)),
            *(self.by_closure(x), self.by_method(x) / 2, self.by_partial(x)),
            self.by_function(x) / 2,
        ]

    def call(self, x):
        return self.conv(x)


def test_whatever_way_a_layer_is_held_it_is_the_copy(strategy):
    model = sequential(FromThere(L.Conv2D(6, 3)))
    before = model.layers[0].conv(X)
    parallel, merged = both_ways(model, strategy)
    for other in (parallel, merged):
        layer = other.layers[0]
        layer.conv.bias.assign(np.arange(6.0))
        for way in layer.ways(X):
            np.testing.assert_allclose(way, before + np.arange(6.0), 1e-4, 1e-4)
        layer.log.append(1)
    assert len(parallel.weights) == len(model.weights) == 2
    assert model.layers[0].log == []
    np.testing.assert_array_equal(model.layers[0].conv(X), before)


def test_tied_weights_stay_tied():
    first, second = L.Dense(3), L.Dense(3)
    model = sequential(first, second, shape=(3,))
    second._tracker.unlock()
    second._kernel = first._kernel
    new = copied(model)
    assert new.layers[0].kernel is new.layers[1].kernel
    assert new.layers[0].kernel is not first.kernel


def test_seeds_go_on_from_where_they_are(strategy):
    model = sequential(L.Conv2D(6, 3), L.Dropout(0.5))
    model(X, training=True)
    new = copied(model)
    with strategy.scope():
        parallel = convpar.parallelize(model)
    expected = model(X, training=True)
    np.testing.assert_array_equal(new(X, training=True), expected)
    np.testing.assert_allclose(parallel(X, training=True), expected, 1e-5, 1e-5)
    assert np.asarray(expected == 0).any()


class ByTrying(L.Layer):
    """Tells the shape of its output by computing one."""

    def __init__(self):
        super().__init__()
        self.dropout = L.Dropout(0.5)
        self.random = tf.random.Generator.from_seed(3)

    def call(self, x, training=False):
        return self.dropout(x, training=training) + self.random.normal([])

    def compute_output_shape(self, shape):
        zeros = keras.ops.zeros((1, *shape[1:]))
        return (None, *self.call(zeros, training=True).shape[1:])


def test_what_a_graph_draws_while_it_is_copied_is_not_lost(strategy):
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, ByTrying()(L.Conv2D(6, 3)(x)))
    parallel, merged = both_ways(model, strategy)
    expected = model(X, training=True)
    for other in (parallel, merged):
        np.testing.assert_allclose(
            other(X, training=True), expected, 1e-5, 1e-5
        )


def test_layers_added_one_by_one(strategy):
    """Keras keeps the graphs of all the models that it was in between."""
    model = sequential(L.Conv2D(6, 3))
    for layer in (L.BatchNormalization(), L.Conv2D(5, 3), L.Flatten()):
        model.add(layer)
    assert len(graphs(model)) == 4
    same_predictions(model, strategy)
    parallel, merged = both_ways(model, strategy)
    assert isinstance(parallel.layers[1].gamma._value, ShardedVariable)
    for other in (parallel, merged):
        assert graphs(other) == [other._functional]


def graphs(model):
    _, tracked = model._tracker.config["layers"]
    return [layer for layer in tracked if hasattr(layer, "_nodes_by_depth")]


def test_nothing_is_drawn(strategy):
    """A network made next starts from the weights it would have had."""

    def next_one(between):
        keras.utils.set_random_seed(3)
        model = sequential(L.Conv2D(6, 3), L.Dropout(0.5), L.Dense(2))
        between(model)
        keras.random.normal((2,))
        return sequential(L.Dense(4), shape=(5,)).get_weights()[0]

    # Keras 3.12 draws the seed of its generator where there is none yet.
    keras.random.normal((1,))
    with strategy.scope():
        after = next_one(convpar.parallelize)
    np.testing.assert_array_equal(after, next_one(lambda model: None))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """Without a config."""

    def __call__(self, step):
        return 0.01 / (1.0 + tf.cast(step, "float32"))


class Distance(keras.metrics.Metric):
    """Without one either, nor arguments that Keras knows of."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.total = self.add_variable((), "zeros")

    def update_state(self, y, z, sample_weight=None):
        self.total.assign_add(self.scale * tf.reduce_sum(tf.abs(z)))

    def result(self):
        return self.total.value


def test_training_goes_on_with_whatever_trains(strategy):
    keras.utils.set_random_seed(1)
    model = sequential(L.Conv2D(6, 3, activation="tanh"), L.Flatten())
    model.compile(
        keras.optimizers.Adam(Schedule()), "mse", metrics=[Distance(2.0)]
    )
    y = np.zeros((24, 216), "float32")
    model.fit(X, y, verbose=0, shuffle=False)
    parallel, merged = both_ways(model, strategy)
    slots = parallel.optimizer._momentums
    assert [slot.layout for slot in slots] == [
        w.layout for w in parallel.layers[0].weights
    ]
    expected = model.fit(X, y, epochs=2, verbose=0, shuffle=False).history
    for other in (parallel, merged):
        found = other.fit(X, y, epochs=2, verbose=0, shuffle=False).history
        assert list(found) == list(expected)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], 1e-5)
    assert not any(isinstance(w, PlacedVariable) for w in merged.variables)


class Pair(keras.Model):
    """Two networks, two optimizers, a `compile` of its own, and no `call`."""

    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = one, two

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second
        self.loss_tracker = keras.metrics.Mean(name="total")

    def train_step(self, data):
        for model, optimizer in (
            (self.one, self.first),
            (self.two, self.second),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(data) - 1.0))
            grads = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(
                zip(grads, model.trainable_weights, strict=True)
            )
            self.loss_tracker.update_state(loss)
        return {"total": self.loss_tracker.result()}


def test_models_of_models_with_optimizers_of_their_own(strategy):
    keras.utils.set_random_seed(1)
    model = Pair(sequential(L.Conv2D(6, 3)), sequential(L.Conv2D(5, 3)))
    model.compile(keras.optimizers.Adam(), keras.optimizers.RMSprop())
    model.fit(X, verbose=0)
    parallel, merged = both_ways(model, strategy)
    assert parallel.first._momentums[0].layout.sizes == (2, 2, 2)
    expected = model.fit(X, epochs=2, verbose=0).history["total"]
    assert expected[1] < expected[0]
    for other in (parallel, merged):
        found = other.fit(X, epochs=2, verbose=0).history["total"]
        np.testing.assert_allclose(found, expected, 1e-5)


class OwnStep(keras.Model):
    """Made as `OwnStep(inputs, outputs, strength)`."""

    def __init__(self, inputs, outputs, strength):
        super().__init__(inputs, outputs)
        self.strength = strength

    def train_step(self, data):
        return {"own": tf.constant(self.strength)}


def test_functional_models_of_a_class_of_ones_own(strategy):
    x = keras.Input((8, 8, 3))
    model = OwnStep(x, L.Conv2D(4, 3)(x), 7.0)
    model.compile("sgd", "mse")
    for other in both_ways(model, strategy):
        assert type(other) is OwnStep
        history = other.fit(X, X[:, 1:-1, 1:-1, :1], verbose=0).history
        assert history == {"own": [7.0]}


def test_what_was_given_is_given_back(strategy):
    constraint, regularizer = keras.constraints.NonNeg(), OnlyLarge()
    conv = L.Conv2D(
        6, 3, kernel_constraint=constraint, kernel_regularizer=regularizer
    )
    model = sequential(conv)
    for other in both_ways(model, strategy):
        layer = other.layers[0]
        assert layer.kernel_constraint is constraint
        assert layer.kernel_initializer is conv.kernel_initializer
        assert isinstance(layer.kernel.constraint, keras.constraints.NonNeg)
        assert isinstance(layer.kernel.regularizer, OnlyLarge)
        assert layer.kernel.regularizer.limit == 0.1
        np.testing.assert_allclose(sum(other.losses), sum(model.losses), 1e-5)


class OnlyLarge(keras.regularizers.Regularizer):
    def __init__(self):
        self.limit = 0.1

    def __call__(self, x):
        return keras.ops.sum(keras.ops.maximum(x - self.limit, 0))


def test_names_of_inputs(strategy):
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((4,), name="b")
    x = keras.Input((8, 8, 3))
    unnamed = keras.Model(x, L.Conv2D(2, 3)(x))
    for other in both_ways(unnamed, strategy):
        assert other.inputs[0].name == unnamed.inputs[0].name
    y = L.Concatenate()([L.Flatten()(L.Conv2D(4, 3)(a)), b])
    model = keras.Model([a, b], {"y": y})
    x = {"b": np.ones((24, 4), "float32"), "a": X}
    expected = model.predict(x, verbose=0)["y"]
    for other in both_ways(model, strategy):
        found = other.predict(x, verbose=0)["y"]
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
        assert [i.name for i in other.inputs] == ["a", "b"]


def test_a_layer_that_was_called_knows_its_output(strategy):
    model = sequential(L.Conv2D(4, 3))
    x = keras.Input((8, 8, 3))
    keras.Model(x, model(x))
    for other in both_ways(model, strategy):
        assert other.output.shape == model.output.shape == (None, 6, 6, 4)


class Locked:
    """What cannot be copied: an object of a class in C inside of it."""

    __slots__ = ("__dict__",)

    def __init__(self, conv):
        self.conv = conv
        self.lock = threading.Lock()


class Odd(dict):
    pass


def test_locks_are_shared_and_what_holds_them_is_copied(strategy):
    class Holder(L.Layer):
        def __init__(self):
            super().__init__()
            self.locked = Locked(L.Conv2D(4, 3))
            self.odd = Odd(a=1)

        def call(self, x):
            return self.locked.conv(x)

    model = sequential(Holder())
    new = both_ways(model, strategy)[1]
    assert new.layers[0].locked.lock is model.layers[0].locked.lock
    assert new.layers[0].locked.conv is not model.layers[0].locked.conv
    assert new.layers[0].odd == {"a": 1}


def test_what_cannot_be_copied_is_said(strategy):
    class Log(io.FileIO):
        pass

    model = sequential(L.Conv2D(4, 3))
    with Log(os.devnull) as log:
        log.layer = L.Dense(2)
        model.layers[0].log = log
        with pytest.raises(ValueError, match="copyable.*Log"):
            copied(model)


def test_a_layer_of_a_saved_model_is_shared(strategy, tmp_path):
    """Its function reads the variables that it was loaded with."""
    backbone = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)]
    )
    backbone.export(tmp_path / "backbone", verbose=False)
    layer = keras.layers.TFSMLayer(tmp_path / "backbone", call_endpoint="serve")
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layer, keras.layers.Conv2D(2, 3)]
    )
    with strategy.scope():
        parallel = convpar.parallelize(model, "equal")
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    before = model.predict(x, verbose=0)
    np.testing.assert_allclose(
        parallel.predict(x, verbose=0), before, rtol=1e-4, atol=1e-5
    )
    for one in (parallel, convpar.merge(parallel)):
        for weight in one.layers[0].weights:
            weight.assign(np.full(weight.shape, 0.5))
        after = one.predict(x, verbose=0)
        assert np.abs(after - before).max() > 1e-2
        for weight, first in zip(
            one.layers[0].weights, backbone.get_weights(), strict=True
        ):
            weight.assign(first)
