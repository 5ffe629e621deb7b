"""Sharded tensors and variables under TensorFlow's ops."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import is_elementwise
from tf_convpar.placement import shard_scope

TASK = "/job:localhost/replica:0/task:0/device:CPU:"
CPU = [f"{TASK}{i}" for i in range(4)]
LAYOUT = Layout(owner=CPU[0], devices=(CPU[1], CPU[0], CPU[2]), sizes=(3, 1, 2))


def sharded(seed=0, sizes=LAYOUT.sizes, axis=-1):
    layout = dataclasses.replace(LAYOUT, sizes=sizes, axis=axis)
    shape = (2, 4, 6) if axis == -1 else (2, 6, 4)
    value = np.random.default_rng(seed).normal(size=shape).astype("float32")
    shards = []
    for piece, device in zip(
        np.split(value, np.cumsum(sizes)[:-1], axis),
        layout.devices,
        strict=True,
    ):
        with tf.device(device):
            shards.append(tf.constant(piece))
    return ShardedTensor(shards, layout), value


def bits(*conditions):
    """One number of several conditions."""
    found = 0.0
    for i, condition in enumerate(conditions):
        found = found + tf.cast(condition, "float32") * 2.0**i
    return found


ELEMENTWISE = {
    "square": lambda t: tf.square(t),
    "scale": lambda t: t / 3.0,
    "scale tensor": lambda t: t * tf.constant(2.0),
    "reversed": lambda t: 1.0 - t,
    "negative": lambda t: -t,
    "both": lambda t: t * t + t,
    "cast": lambda t: tf.cast(t, "float64"),
    "clip": lambda t: tf.clip_by_value(t, -0.5, 0.5),
    "clip by norm": lambda t: tf.clip_by_norm(t, 0.7),
    "sum over other axes": lambda t: tf.reduce_sum(t, 0, keepdims=True),
    "per filter": lambda t: t / tf.reduce_sum(t, [0, 1], keepdims=True),
    "keras": lambda t: keras.ops.multiply(keras.ops.square(t), 0.5),
    "power": lambda t: t**2,
    "power of two": lambda t: 2.0**t,
    "quotient": lambda t: 1.0 / t,
    "absolute": lambda t: abs(t),
    "comparisons": lambda t: bits(t < 0.1, t > 0.1, t <= t, t >= t, t < t),
    "sum over an axis before": lambda t: tf.reduce_sum(t, 0),
    "per channel": lambda t: t * tf.range(6.0),
    "per pixel": lambda t: t * tf.reshape(tf.range(8.0), [2, 4, 1]),
}
MERGED = {
    "sum": lambda t: tf.reduce_sum(t),
    "max": lambda t: keras.ops.max(t),
    "all finite": lambda t: keras.ops.all(keras.ops.isfinite(t)),
    "norm": lambda t: tf.norm(t),
    "any": lambda t: keras.ops.any(t > 1.5),
    "cut otherwise": lambda t: t + sharded(1, (2, 2, 2))[0],
    "matmul": lambda t: tf.matmul(t, t, transpose_b=True),
    "last axis": lambda t: tf.reduce_sum(t, -1),
    "two axes": lambda t: tf.reduce_sum(t, [0, 2], keepdims=True),
    "clip by norm of axes": lambda t: tf.clip_by_norm(t, 0.7, axes=[0]),
}


@pytest.mark.parametrize("name", [*ELEMENTWISE, *MERGED])
def test_ops_on_sharded_tensors(name):
    fn = (ELEMENTWISE | MERGED)[name]
    tensor, value = sharded()
    result = fn(tensor)
    np.testing.assert_allclose(
        result, fn(tf.constant(value)), rtol=1e-5, atol=1e-6
    )
    assert isinstance(result, ShardedTensor) == (name in ELEMENTWISE)
    if name in ELEMENTWISE:
        assert [s.device for s in result.shards] == list(LAYOUT.devices)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1, [0, -1], [-2, -1]])
def test_sums_of_another_axis_than_the_last(axis, keepdims):
    """As of kernels of transposed convolutions."""
    tensor, value = sharded(axis=-2)
    np.testing.assert_allclose(
        tf.reduce_sum(tensor, axis, keepdims),
        tf.reduce_sum(value, axis, keepdims),
        rtol=1e-5,
        atol=1e-6,
    )


def test_what_is_joined_in_a_function_stays_there():
    tensor, value = sharded()
    assert tensor.joined() is tensor.joined()
    tensor, value = sharded()
    np.testing.assert_array_equal(tf.function(lambda: tensor.joined())(), value)
    np.testing.assert_array_equal(tensor.joined(), value)


def test_sharded_tensors_pass_through_functions():
    tensor, value = sharded()
    doubled = tf.function(lambda t: t * 2.0)(tensor)
    assert isinstance(doubled, ShardedTensor)
    np.testing.assert_allclose(doubled, value * 2)
    chosen = tf.cond(tf.constant(True), lambda: tensor, lambda: tensor * 2.0)
    np.testing.assert_allclose(chosen, value)


def updates(variable, slot):
    """Update functions as optimizers make them, and whether they mix."""
    count = tf.Variable(0.0)
    other = ShardedVariable(
        np.ones([2, 4, 6], "float32"),
        dataclasses.replace(LAYOUT, sizes=(2, 2, 2)),
    )
    return {
        "sgd": (lambda v, g: v.assign_sub(g * 0.1), True),
        "momentum": (
            lambda v, g: v.assign_sub(slot.assign(slot * 0.9 + g)),
            True,
        ),
        "scalar op": (
            lambda v, g: v.assign_sub(g * tf.math.floor(tf.constant(2.5))),
            True,
        ),
        "norm": (lambda v, g: v.assign_sub(g / tf.norm(g)), False),
        "mean": (lambda v, g: v.assign_sub(g - tf.reduce_mean(g, -1)), False),
        "reverse": (lambda v, g: v.assign(tf.reverse(v + g, [-1])), False),
        "per kernel": (
            lambda v, g: v.assign_sub(g * tf.range(6, dtype=g.dtype)),
            False,
        ),
        "number": (lambda v, g: v.assign_sub(g * count), True),
        "count": (lambda v, g: v.assign_sub(g * count.assign_add(1.0)), False),
        "noise": (lambda v, g: v.assign_sub(g * tf.random.uniform([])), False),
        "size": (lambda v, g: v.assign_sub(g / int(tf.size(g))), False),
        "mask": (
            lambda v, g: v.assign_sub(g * np.arange(6.0)[: v.shape[-1]]),
            False,
        ),
        "cut otherwise": (lambda v, g: v.assign_sub(g * 0 + other), False),
        "in a function": (tf.function(lambda v, g: v.assign_sub(g)), False),
        "eager": (lambda v, g: v.assign_sub(g * v.numpy()), False),
    }


@pytest.mark.parametrize(
    "name",
    "sgd, momentum, scalar op, norm, mean, reverse, per kernel, number, count, "
    "noise, size, mask, cut otherwise, in a function, eager".split(", "),
)
def test_which_updates_are_elementwise(name):
    variable = ShardedVariable(np.ones([2, 4, 6], "float32"), LAYOUT)
    slot = ShardedVariable(np.zeros([2, 4, 6], "float32"), LAYOUT)
    fn, expected = updates(variable, slot)[name]
    assert is_elementwise(fn, variable, [sharded()[0]]) is expected
    # The question changes nothing.
    np.testing.assert_array_equal(variable.numpy(), np.ones([2, 4, 6]))


def test_shard_scope_stands_for_one_shard():
    variable = ShardedVariable(np.ones([2, 4, 6], "float32"), LAYOUT)
    with shard_scope(2):
        assert variable.shape == (2, 4, 2)
        variable.assign_add(tf.ones([2, 4, 2]))
        assert tf.convert_to_tensor(variable).shape == (2, 4, 2)
    assert variable.shape == (2, 4, 6)
    np.testing.assert_array_equal(variable.numpy()[..., 4:], 2)
    np.testing.assert_array_equal(variable.numpy()[..., :4], 1)


def test_a_variable_is_given_to_a_function_as_itself():
    @tf.function
    def add(variable, value):
        variable.assign_add(tf.fill(variable.shape, value))

    one, two = (
        ShardedVariable(np.ones([2, 4, 6], "float32"), LAYOUT) for _ in "ab"
    )
    for variable in (one, two, one):
        add(variable, 1.0)
    with shard_scope(2):
        add(one, 10.0)
    with shard_scope(0):
        add(one, 20.0)
    np.testing.assert_array_equal(two.numpy(), np.full([2, 4, 6], 2))
    expected = np.zeros([2, 4, 6]) + [23, 23, 23, 3, 13, 13]
    np.testing.assert_array_equal(one.numpy(), expected)
