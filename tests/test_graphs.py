"""What was traced for a model is freed with it, or when it lies otherwise."""

import gc
import os
import sys
import weakref
from pathlib import Path

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import data

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar.placement import on_device
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout


def residual():
    """With sums, activations that have gradients of their own, a big layer."""
    L = keras.layers
    inputs = keras.Input((8, 8, 1))
    x = L.Conv2D(4, 3, padding="same", activation="silu")(inputs)
    x = L.BatchNormalization()(x)
    y = L.Conv2D(4, 3, padding="same")(x)
    x = L.Flatten()(L.Add()([x, y]))
    model = keras.Model(inputs, L.Dense(2)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    return model


def graphs():
    # What a model's end frees is garbage from then on.
    gc.collect()
    gc.collect()
    found = tf.__internal__.FuncGraph
    return {id(o) for o in gc.get_objects() if isinstance(o, found)}


def gradients():
    from tf_convpar._compat.tensorflow import gradient_registry

    return set(gradient_registry.list())


@pytest.mark.slow
def test_parts_of_functions_are_freed_on_all_tasks():
    """But for what replicas had when they were last made anew."""
    program = Path(__file__).parent / "programs/functions.py"
    found = forks.found([program], dict(os.environ))
    assert found["layouts"] == 0
    # There are as many for each time without that.
    assert found["replicas"] <= 4


def test_parts_are_left_without_the_compiled_op(monkeypatch):
    """Only that can reach the runtime."""
    monkeypatch.setattr(ops._library, "load", lambda: False)
    assert ops.release_functions({"__inference_gone_1"}) == 0


def test_what_is_not_gone_by_name_is_left(strategy):
    """Nothing is released but what was asked for."""
    assert ops.release_functions({"__inference_gone_1"}) == 0
    assert ops.release_functions([]) == 0
    double = tf.function(lambda x: 2.0 * x).get_concrete_function(
        tf.TensorSpec([])
    )
    assert double(tf.constant(2.0)) == 4.0
    name = tf.compat.as_text(double.name)
    assert ops.release_functions([name + "0", name[:-1]]) == 0
    assert double(tf.constant(3.0)) == 6.0


@pytest.mark.parametrize(
    ("plan", "algorithm"),
    [slow(("equal", None)), ({".*": "samples"}, "auto")],
)
def test_what_a_model_traced_goes_with_it(strategy, plan, algorithm):
    """As in a search of hyperparameters, which makes one after another."""
    x, y = data()

    def used():
        with strategy.scope():
            model = convpar.parallelize(residual(), plan, algorithm=algorithm)
        # A last batch of another size, smaller than the cluster.
        few = slice(0, 9)
        model.fit(x[few], y[few], batch_size=4, epochs=1, verbose=0)
        model.evaluate(x[few], y[few], batch_size=4, verbose=0)
        model.predict(x[few], batch_size=4, verbose=0)
        return weakref.ref(model)

    used()
    before, named, objects = graphs(), gradients(), len(gc.get_objects())
    model = used()
    assert graphs() <= before
    assert model() is None
    assert gradients() <= named
    assert len(gc.get_objects()) < objects + 2000


@pytest.mark.slow
@pytest.mark.parametrize("held", [slow(False), True])
def test_what_a_programs_own_loop_traced_goes_with_it(strategy, held):
    """Though a gradient of its graph may still be asked for, while it is."""
    x, y = data()

    def used():
        with strategy.scope():
            made = convpar.parallelize(residual(), {".*": "samples"})
        model = keras.Model(made.inputs, made.layers[-2].output)

        @tf.function
        def loss(x):
            return tf.reduce_sum(model(x, training=True) ** 2)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                found = loss(x)
            return tape.gradient(found, model.trainable_variables)

        given = tf.constant(x[:4])
        step(given)
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = loss(given)
        if held:
            del loss, step
            gc.collect()
        assert np.any(tape.gradient(found, given))

    used()
    before, named = graphs(), gradients()
    used()
    assert graphs() <= before
    assert gradients() <= named


def test_a_function_outlives_whose_method_it_ran(strategy):
    """Of a program: it goes on with what it was traced with."""

    factor = tf.Variable(2.0)

    class Scaling(keras.Model):
        def step(self, x):
            return factor * x

    @tf.function
    def run(x):
        return strategy.run(Scaling().step, (x,))

    assert run(tf.constant(2.0)) == 4.0
    gc.collect()
    with tf.GradientTape() as tape:
        result = run(tf.constant(3.0))
    # For which the graph is read, now that it is asked for.
    assert tape.gradient(result, factor) == 3.0


@pytest.mark.slow
def test_steps_are_freed_with_their_variables(strategy):
    x, y = data()
    with strategy.scope():
        model = convpar.parallelize(residual(), "equal")
    how, plain = HowSplit.of(model, strategy.devices), convpar.merge(model)
    found, variables = [], []
    for _ in range(2):
        model.fit(x, y, batch_size=16, verbose=0, validation_data=(x, y))
        model.predict(x, verbose=0)
        variables.append(weakref.ref(model.optimizer.variables[-1].value))
        relayout(model, plain, how, strategy)
        found.append((len(graphs()), len(gradients())))
    assert found[0] == found[1]
    assert not any(variable() for variable in variables)


@pytest.mark.parametrize("count", [2, 3])
def test_a_gradient_of_several_arguments_is_freed(count):
    """As that of a sum is, of which each argument has the whole."""
    add = on_device(lambda *xs: tf.add_n(list(xs)), "CPU:0")
    args = [tf.constant([1.0, 2.0 + n]) for n in range(count)]
    upstream = tf.constant([3.0, 4.0])
    before = sys.getrefcount(upstream)
    with tf.GradientTape() as tape:
        tape.watch(args)
        y = add(*args)
    found = tape.gradient(y, args, upstream)
    for gradient in found:
        np.testing.assert_array_equal(gradient, upstream)
    del tape, y, found, gradient
    assert sys.getrefcount(upstream) == before
