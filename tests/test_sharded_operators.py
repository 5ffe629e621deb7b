"""Tensors and variables in shards do in Python what plain ones do."""

import copy
import operator
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns
from test_placement import CPU
from test_placement import LAYOUT
from test_placement import sharded

import tf_convpar as convpar
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable

X = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32")
# As a kernel's gradient, with numbers that are equal to others.
VALUE = np.round(sharded()[1], 1)
OTHER = np.round(sharded(1)[1], 1)
ROW = np.arange(1.0, 7.0)  # In float64, as numpy makes it.


def whole(t):
    return tf.cast(t * 10, "int32")


SHARD_BY_SHARD = {
    "equal to a number": lambda t: t == 0,
    "number equal to it": lambda t: 0 == t,  # noqa: SIM300
    "not equal": lambda t: t != 0.1,
    "equal to itself": lambda t: t == t,  # noqa: PLR0124
    "equal to an array": lambda t: t == OTHER,
    "equal to a list": lambda t: t == OTHER.tolist(),
    "equal to a tensor": lambda t: t == tf.constant(OTHER),
    "modulo": lambda t: t % 0.3,
    "modulo of a number": lambda t: 2.0 % (t + 5),
    "floor": lambda t: t // 0.3,
    "floor of a number": lambda t: 3.0 // (t + 5),
    "not": lambda t: ~(t == 0),
    "and": lambda t: (t > 0) & (t < 1),
    "and True": lambda t: (t > 0) & True,
    "True and": lambda t: True & (t > 0),
    "or": lambda t: (t > 0) | (t < -1),
    "exclusive or": lambda t: (t > 0) ^ (t < 1),
    "products of conditions": lambda t: (t > 0) * (t < 1),
    "bits of integers": lambda t: (whole(t) & 3, whole(t) | 3, whole(t) ^ 3),
    "inverted integers": lambda t: ~whole(t),
    "integers divided": lambda t: (whole(t) // 3, whole(t) / 3, whole(t) % 3),
    "an array of float64": lambda t: t * ROW,
    "of an array of float64": lambda t: ROW * t,
    "a number of numpy": lambda t: np.float32(2) * t + np.float64(1),
    "a list": lambda t: t * ROW.tolist(),
    "an array to a function": lambda t: tf.multiply(t, ROW),
    "clipped by numbers": lambda t: tf.clip_by_value(t, -0.5, 0.5),
    "clipped by itself": lambda t: tf.clip_by_value(t, -abs(t), abs(t) / 2),
}
WHOLE = {
    "equal to what has no such shape": lambda t: t == np.ones(5),
    "channel": lambda t: t[..., 0],
    "first": lambda t: t[0],
    "new axis": lambda t: t[None, ..., tf.newaxis],
    "slice": lambda t: t[:, 1:2, ::-1],
    "by a tensor": lambda t: t[tf.constant(1)],
    "matrices": lambda t: t @ tf.transpose(OTHER, [0, 2, 1]),
    "of matrices": lambda t: tf.ones((2, 3, 4)) @ t,
    "clipped by tensors": lambda t: tf.clip_by_value(t, -ROW / 9, ROW / 9),
    "log of softmax": lambda t: tf.compat.v1.nn.log_softmax(t),
    "stack": lambda t: tf.stack([t, t]),
    "list": lambda t: tf.convert_to_tensor([t, t]),
    "map": lambda t: tf.map_fn(lambda x: x * 2, t),
    "vectorized map": lambda t: tf.vectorized_map(lambda x: x * 2, t),
}
ASKED = {
    "length": len,
    "rows": list,
    "shape": lambda t: [t.get_shape(), t.get_shape()[0], t.ndim],
    "equal to nothing": lambda t: [t == None, t != None],  # noqa: E711
    "copies": lambda t: [copy.copy(t), copy.deepcopy(t)],
    "pickled": lambda t: pickle.loads(pickle.dumps(t)),
    "by reference": lambda t: {t.ref(): 1}[t.ref()],
    "printed": str,
    "dataset": lambda t: list(tf.data.Dataset.from_tensors(t)),
    "dataset of rows": lambda t: list(tf.data.Dataset.from_tensor_slices(t)),
}


def tensor():
    return ShardedTensor(sharded()[0].shards, LAYOUT) * 0 + VALUE


def variable():
    return ShardedVariable(VALUE, LAYOUT)


def flat(found):
    """Arrays of what was found, a type that is no number among them."""
    return [np.asarray(x) for x in keras.tree.flatten(found)]


def same(found, expected):
    for a, b in zip(flat(found), flat(expected), strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind in "fc":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "graph"), by_turns([*SHARD_BY_SHARD, *WHOLE], [False, True])
)
def test_operators(name, graph):
    fn = (SHARD_BY_SHARD | WHOLE)[name]
    run = tf.function(fn) if graph else fn
    found = run(tensor())
    same(found, run(tf.constant(VALUE)))
    parts = found if isinstance(found, tuple) else (found,)
    for part in parts:
        assert isinstance(part, ShardedTensor) == (name in SHARD_BY_SHARD)
    if name in SHARD_BY_SHARD and not graph:
        assert [x.device for x in parts[0].shards] == list(LAYOUT.devices)


@pytest.mark.parametrize("name", [*SHARD_BY_SHARD, *WHOLE])
def test_operators_of_variables(name):
    fn = (SHARD_BY_SHARD | WHOLE)[name]
    same(fn(variable()), fn(tf.Variable(VALUE)))


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_of_a_tensor(name):
    same(ASKED[name](tensor()), ASKED[name](tf.constant(VALUE)))


def test_what_a_tensor_refuses():
    for t in (tf.constant(VALUE), tensor()):
        with pytest.raises(ValueError, match="ambiguous"):
            bool(t == t)  # noqa: PLR0124
        with pytest.raises(ValueError, match=r"\(2, 4, 6\)"):
            t.set_shape([2, 4, 5])
        for kind in (float, int, operator.index):
            with pytest.raises((TypeError, ValueError)):
                kind(t)
        with pytest.raises(AttributeError):
            t.no_such_attribute  # noqa: B018
        t.set_shape([2, None, 6])


def test_a_tensor_of_one_element():
    one = ShardedTensor([tf.constant([2.5])], Layout(CPU[0], CPU[1:2], (1,)))
    assert bool(one == 2.5) is True
    assert bool(one != 2.5) is False


def test_what_was_joined_before_a_tape_looked():
    t = tensor()
    expected = tf.constant(VALUE)
    tf.norm(t)
    grads = []
    for x in (t, expected):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.norm(x) ** 2
        grads.append(tape.gradient(loss, x))
    same(*grads)


def network(strategy=None):
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(6, 3, activation="relu", name="c"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential(layers)
    if strategy is None:
        return model
    with strategy.scope():
        plan = {"c": (3, 1, 2)}
        return convpar.parallelize(model, plan, verbose=False)


def zeros_of_a_gradient(model):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(-abs(X)))
    kernel = tape.gradient(loss, model.trainable_variables)[0]
    kept = tf.reduce_mean(tf.cast(kernel == 0, "float32"))
    return [kept, tf.reduce_mean(tf.cast(kernel != 0, "float32")), kernel[0]]


def jacobian(model, **options):
    with tf.GradientTape(persistent=bool(options)) as tape:
        y = model(X)
    return tape.jacobian(y, model.trainable_variables, **options)


def one_by_one(model):
    return jacobian(model, experimental_use_pfor=False)


def in_a_function(model):
    return tf.function(lambda: jacobian(model))()


def of_each_image(model):
    def gradients(image):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(image[None]) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return tf.vectorized_map(gradients, tf.constant(X))


def hessian(model):
    bias = model.layers[0].bias
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(model(X) ** 3)
        gradient = inner.gradient(loss, bias)
    return tape.jacobian(gradient, bias)


@pytest.mark.parametrize(
    "fn",
    [
        *(zeros_of_a_gradient, jacobian, one_by_one, in_a_function),
        *(of_each_image, hessian),
    ],
)
def test_gradients_of_a_split_model(fn, strategy):
    model = network(strategy)
    assert len({x.device for x in model.layers[0].kernel.shards}) == 3
    found, expected = fn(model), fn(network())
    assert any(np.abs(x).max() > 0 for x in flat(expected))
    same(found, expected)
