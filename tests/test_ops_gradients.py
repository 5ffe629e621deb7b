"""Gradients of the ops: their values, and the device they run on."""

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar import ops


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


@pytest.fixture(params=[False, True], ids=["eager", "graph"])
def wrap(request):
    """Runs a test's function as it is, or as a graph."""
    return tf.function if request.param else lambda function: function


def shards_for(axis, widths=(1, 4, 0, 2)):
    shards = []
    for i, width in enumerate(widths):
        shape = [2, 3, 3]
        shape[axis] = width
        shards.append(tf.random.stateless_normal(shape, [i, 1]))
    return shards


def assert_all_equal(actual, expected):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("axis", [-1, 1])
def test_concat_gradient_is_that_of_tf_concat(native, wrap, axis):
    shards = shards_for(axis)
    dtypes = [tf.float32, tf.bfloat16, tf.float64, tf.float32]
    shards = [tf.cast(s, d) for s, d in zip(shards, dtypes, strict=True)]

    def gradient(join):
        @wrap
        def run(*shards):
            with tf.GradientTape() as tape:
                tape.watch(shards)
                joined = join(shards)
                loss = tf.reduce_sum(tf.sin(joined) * joined)
            return tape.gradient(loss, shards)

        return run(*shards)

    actual = gradient(lambda s: ops.concat_shards(s, axis, native=native))
    expected = gradient(
        lambda s: tf.concat([tf.cast(x, tf.float32) for x in s], axis)
    )
    assert_all_equal(actual, expected)


@pytest.mark.parametrize("axis", [-1, 1])
def test_split_gradient_is_that_of_tf_split(native, wrap, axis):
    (value,) = shards_for(axis, widths=(7,))
    sizes = [1, 4, 0, 2]
    dtypes = [tf.float32, tf.bfloat16, tf.float32, tf.float64]

    def gradient(cut):
        @wrap
        def run(value):
            with tf.GradientTape() as tape:
                tape.watch(value)
                loss = 0.0
                for i, shard in enumerate(cut(value)):
                    shard = tf.cast(shard, tf.float32)
                    loss += tf.reduce_sum(tf.sin(shard * (i + 1)))
            return [tape.gradient(loss, value)]

        return run(value)

    actual = gradient(
        lambda v: ops.split_shards(v, sizes, axis, dtypes, native=native)
    )
    expected = gradient(
        lambda v: [
            tf.cast(part, dtype)
            for part, dtype in zip(
                tf.split(v, sizes, axis), dtypes, strict=True
            )
        ]
    )
    assert_all_equal(actual, expected)


def test_a_shard_nobody_uses_has_gradient_zero(native, wrap):
    value = tf.random.stateless_normal((2, 6), [1, 2])

    @wrap
    def run(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            shards = ops.split_shards(
                value, [2, 1, 3], dtypes=tf.bfloat16, native=native
            )
            loss = tf.reduce_sum(shards[1])
        return tape.gradient(loss, value)

    np.testing.assert_array_equal(run(value), [[0, 0, 1, 0, 0, 0]] * 2)


@pytest.mark.parametrize("shape", [(None, 3, None), None])
def test_concat_gradient_where_widths_are_unknown(native, shape):
    @tf.function(input_signature=[tf.TensorSpec(shape)] * 2)
    def run(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            joined = ops.concat_shards([a, b], native=native)
            scale = tf.range(tf.cast(tf.shape(joined)[-1], tf.float32))
            loss = tf.reduce_sum(joined * scale)
        return tape.gradient(loss, [a, b])

    a, b = run(tf.ones((1, 3, 2)), tf.ones((1, 3, 3)))
    np.testing.assert_array_equal(a, [[[0, 1]] * 3])
    np.testing.assert_array_equal(b, [[[2, 3, 4]] * 3])


def test_second_order(native, wrap):
    a = tf.random.stateless_normal((2, 3), [1, 2])
    b = tf.random.stateless_normal((2, 4), [3, 4])

    @wrap
    def run(a, b):
        with tf.GradientTape() as outer:
            outer.watch([a, b])
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                joined = ops.concat_shards([a, b], native=native)
                cut = ops.split_shards(joined**3, [5, 2], native=native)
                loss = sum(tf.reduce_sum(shard**2) for shard in cut)
            first = inner.gradient(loss, [a, b])
            total = sum(tf.reduce_sum(g**2) for g in first)
        return first, outer.gradient(total, [a, b])

    first, second = run(a, b)
    # loss = sum x^6, total = sum 36 x^10
    for x, one, two in zip((a, b), first, second, strict=True):
        np.testing.assert_allclose(one, 6 * x**5, rtol=1e-5)
        np.testing.assert_allclose(two, 360 * x**9, rtol=1e-5)


def test_sparse_gradients_reach_through_split(native):
    value = tf.ones((4, 4))
    with tf.GradientTape() as tape:
        tape.watch(value)
        shards = ops.split_shards(value, [1, 3], native=native)
        loss = tf.reduce_sum(tf.gather(shards[0], [1, 1]))
    np.testing.assert_array_equal(
        tape.gradient(loss, value)[:, 0], [0, 2, 0, 0]
    )


def test_gradients_stay_where_the_op_ran(native):
    kinds = (
        ("ConcatShards", "SplitShards") if native else ("ConcatV2", "SplitV")
    )

    def run(a, b):
        with tf.GradientTape() as outer:
            outer.watch([a, b])
            with tf.GradientTape() as inner:
                inner.watch([a, b])
                with tf.device("CPU:1"):
                    joined = ops.concat_shards([a, b], native=native)
                with tf.device("CPU:2"):
                    cut = ops.split_shards(joined, [4, 1], native=native)
                # Outside of every scope, or inside another one: no matter.
                loss = tf.reduce_sum(cut[0] ** 3) + tf.reduce_sum(cut[1] ** 3)
            with tf.device("CPU:0"):
                first = inner.gradient(loss, [a, b])
                loss = sum(tf.reduce_sum(g**2) for g in first)
        return first, outer.gradient(loss, [a, b])

    a, b = tf.ones((2, 2)), tf.ones((2, 3))
    for first_or_second in run(a, b):
        for gradient in first_or_second:
            assert gradient.device.endswith("CPU:1"), gradient.device

    graph = tf.function(run).get_concrete_function(a, b).graph
    found = []
    for op in graph.get_operations():
        if op.type.split(">")[-1] in kinds:
            assert op.device.endswith(("CPU:1", "CPU:2")), (op.name, op.device)
            found.append((op.type.split(">")[-1], op.device[-5:]))
    # Both ops, on each of the two devices: as itself and as a gradient.
    assert len(set(found)) == 4, found
