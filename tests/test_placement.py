"""The three primitives, placed variables and sharded tensors."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_sharded_values import CPU
from test_sharded_values import LAYOUT
from test_sharded_values import sharded

from tf_convpar.placement import Layout
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import broadcast
from tf_convpar.placement import concat_shards
from tf_convpar.placement import on_device


def devices_of(graph, kind):
    return [op.device for op in graph.get_operations() if op.type == kind]


def test_on_device_places_both_directions():
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = on_device(tf.tanh, CPU[2])(x)
        return y, tape.gradient(y, x)

    x = tf.constant([0.5, -1.0])
    graph = step.get_concrete_function(x).graph
    assert devices_of(graph, "Tanh") == [CPU[2]]
    assert devices_of(graph, "TanhGrad") == [CPU[2]]
    y, dx = step(x)
    np.testing.assert_allclose(dx, 1 - np.tanh(x) ** 2, rtol=1e-6)


def test_on_device_with_several_arguments_and_results():
    def fn(a, b):
        return [a * b, a - b]

    a, b = tf.constant([2.0, 3.0]), tf.constant([5.0, 7.0])
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        p, d = on_device(fn, CPU[1])(a, b)
        loss = tf.reduce_sum(p * 2 + d)
    assert p.device == d.device == CPU[1]
    da, db = tape.gradient(loss, [a, b])
    np.testing.assert_array_equal(da, 2 * b + 1)
    np.testing.assert_array_equal(db, 2 * a - 1)


def test_on_device_that_was_traced_while_no_tape_records():
    """`tf.recompute_grad` traces it so, and then asks for the gradient."""
    square = tf.function(lambda v: on_device(tf.square, CPU[1])(v))

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(square)(x)
        return tape.gradient(y, x)

    x = tf.constant([1.5, -2.0])
    np.testing.assert_allclose(gradient(x), 2 * x)


def test_on_device_third_derivative():
    x = tf.constant(1.5)
    with tf.GradientTape() as t3:
        t3.watch(x)
        with tf.GradientTape() as t2:
            t2.watch(x)
            with tf.GradientTape() as t1:
                t1.watch(x)
                y = on_device(lambda v: v**4, CPU[1])(x)
            first = t1.gradient(y, x)
        second = t2.gradient(first, x)
    np.testing.assert_allclose(t3.gradient(second, x), 24 * 1.5, rtol=1e-6)


@pytest.mark.parametrize("wire", [None, "bfloat16", "float16"])
def test_broadcast_sums_partial_gradients_on_the_owner(wire):
    x = tf.constant([1.0, 2.5, -3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        copies = broadcast(x, [CPU[0], CPU[1], CPU[2]], CPU[0], wire)
        loss = tf.add_n(
            [
                tf.reduce_sum(tf.identity(c) * w)
                for c, w in zip(copies, (1.0, 0.001, 256.0), strict=True)
            ]
        )
    assert [c.device for c in copies] == CPU[:3]
    assert [c.dtype for c in copies] == [tf.float32] * 3
    dx = tape.gradient(loss, x)
    assert dx.device == CPU[0]
    # In a narrow sum 0.001 would be lost beside 256.
    np.testing.assert_allclose(dx, [257.001] * 3, atol=1e-5)
    assert float(dx[0]) != 257.0


@pytest.mark.parametrize(
    ("dtype", "slopes"),
    [("bfloat16", (256, 1, 1, 2)), ("float64", (1, 2**-40, 2**-40, 2**-40))],
)
def test_broadcast_sums_in_no_narrower_dtype(dtype, slopes):
    """The sum has digits that one by one would be lost."""
    x = tf.constant([1.0], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.add_n(
            [
                tf.reduce_sum(copy * tf.cast(slope, dtype))
                for copy, slope in zip(
                    broadcast(x, CPU, CPU[0]), slopes, strict=True
                )
            ]
        )
    dx = tape.gradient(loss, x)
    assert dx.dtype == dtype
    assert float(dx[0]) == sum(slopes)


def test_broadcast_rounds_what_travels_and_nothing_else():
    x = tf.constant([1 + 2**-12])
    own, other = broadcast(x, [CPU[0], CPU[1]], CPU[0], "bfloat16")
    assert float(own[0]) == 1 + 2**-12
    assert float(other[0]) == 1.0


@pytest.mark.parametrize("axis", [-1, 1])
def test_concat_shards_and_its_mirror(axis):
    @tf.function
    def step(*shards):
        with tf.GradientTape() as tape:
            tape.watch(shards)
            y = concat_shards(shards, CPU[3], axis)
            loss = y * tf.reshape(tf.range(tf.size(y), dtype=y.dtype), y.shape)
        return [y, *tape.gradient(loss, shards)]

    shape = [2, 3, 3, 3]
    shards = []
    for width, device in zip((2, 0, 4), CPU, strict=False):
        shape[axis] = width
        with tf.device(device):
            shards.append(tf.random.normal(shape, seed=width))
    y, *grads = step(*shards)
    np.testing.assert_array_equal(y, tf.concat(shards, axis))
    weights = np.arange(tf.size(y), dtype="float32").reshape(y.shape)
    for grad, expected in zip(
        grads, np.split(weights, [2, 2], axis), strict=True
    ):
        np.testing.assert_array_equal(grad, expected)
    graph = step.get_concrete_function(*shards).graph
    assert devices_of(graph, "TfConvpar>ConcatShards") in ([CPU[3]], [])
    assert devices_of(graph, "TfConvpar>SplitShards") in ([CPU[3]], [])


def placed(initializer="glorot_uniform", shape=(3, 3, 2, 6), **kwargs):
    return PlacedVariable(initializer, shape=shape, layout=LAYOUT, **kwargs)


def test_placed_variable_is_one_variable_in_shards():
    value = np.arange(108, dtype="float32").reshape(3, 3, 2, 6)
    variable = placed(lambda shape, dtype: tf.constant(value))
    assert [s.device for s in variable.shards] == [CPU[1], CPU[0], CPU[2]]
    assert [s.shape[-1] for s in variable.shards] == [3, 1, 2]
    assert variable.shape == (3, 3, 2, 6)
    np.testing.assert_array_equal(variable.numpy(), value)
    np.testing.assert_array_equal(tf.convert_to_tensor(variable), value)
    np.testing.assert_array_equal(variable + 1, value + 1)
    variable.assign(value * 2)
    np.testing.assert_array_equal(variable.shards[2], value[..., 4:] * 2)
    variable.assign_sub(value)
    np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("how", ["eager", "in a graph", "symbolic, later"])
@pytest.mark.parametrize("scope", [False, True])
def test_placed_variable_keeps_its_devices(how, scope, strategy):
    made = []

    def make():
        if not made:
            made.append(placed())
        return made[0]

    def build():
        if how == "eager":
            make()
        elif how == "in a graph":
            tf.function(lambda: tf.reduce_sum(make()))()
        else:
            with keras.StatelessScope():
                make()  # Leaving the scope initialises it.

    if scope:
        with strategy.scope():
            build()
    else:
        build()
    assert [s.device for s in made[0].shards] == [CPU[1], CPU[0], CPU[2]]


def test_zeros_are_made_where_they_are_needed():
    """They do not cross the wire, as large as a kernel."""
    variable = placed()

    @tf.function
    def reset():
        variable.assign(tf.zeros([3, 3, 2, 6]))

    graph = reset.get_concrete_function().graph
    assert not devices_of(graph, "Split") + devices_of(graph, "SplitV")
    reset()
    np.testing.assert_array_equal(variable.numpy(), np.zeros([3, 3, 2, 6]))


@pytest.mark.parametrize("seed", [None, 0])
def test_channels_of_flattened_pixels(seed):
    """Of each pixel every device has some; zeros are cut like the rest."""
    layout = dataclasses.replace(LAYOUT, axis=-2, blocks=2)
    value = np.zeros([12, 5], "float32")
    if seed is not None:
        value += np.random.default_rng(seed).normal(size=[12, 5])
    variable = ShardedVariable(value, layout)
    rows = [[0, 1, 2, 6, 7, 8], [3, 9], [4, 5, 10, 11]]
    for shard, own, device in zip(
        variable.shards, rows, layout.devices, strict=True
    ):
        assert shard.device == device
        np.testing.assert_array_equal(shard, value[own])
    np.testing.assert_array_equal(variable.numpy(), value)
    np.testing.assert_array_equal(tf.convert_to_tensor(variable), value)


def test_a_value_that_is_cut_otherwise_is_cut_anew():
    variable = placed(shape=(2, 4, 6))
    other, value = sharded(1, (2, 2, 2))
    variable._value.assign(other)
    np.testing.assert_array_equal(variable.numpy(), value)
    assert [s.shape[-1] for s in variable.shards] == [3, 1, 2]


def test_gradient_of_one_shard_is_zero_for_the_others():
    variable = placed(shape=(2, 4, 6))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable.shards[2] * 3.0)
    gradient = tape.gradient(loss, [variable])[0]
    assert [s.device for s in gradient.shards[:2]] == [CPU[1], CPU[0]]
    np.testing.assert_array_equal(gradient.numpy()[..., 4:], 3)
    np.testing.assert_array_equal(gradient.numpy()[..., :4], 0)


def test_gradient_of_a_placed_variable_stays_in_shards():
    variable = placed()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.convert_to_tensor(variable) ** 2)
    gradient = tape.gradient(loss, [variable])[0]
    assert isinstance(gradient, ShardedTensor)
    assert gradient.layout == LAYOUT
    np.testing.assert_allclose(gradient, 2 * variable.numpy(), rtol=1e-6)
    with tf.GradientTape() as tape:
        loss = tf.constant(1.0) * 2
    assert tape.gradient(loss, variable) is None


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sizes": (3, 1)}, "3 devices and 2 sizes"),
        ({"sizes": (3, 0, 3)}, r"sizes=\(3, 0, 3\)"),
        ({"axis": 1}, "axis=1"),
    ],
)
def test_bad_layouts(kwargs, message):
    good = {"owner": CPU[0], "devices": LAYOUT.devices, "sizes": (3, 1, 2)}
    with pytest.raises(ValueError, match=message):
        Layout(**{**good, **kwargs})
