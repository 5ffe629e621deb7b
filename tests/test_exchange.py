"""How feature maps get to where they are needed."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import everywhere
from tf_convpar.placement import in_shards

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
# The chief holds nothing; 1 + 2**-12 is 1 in bfloat16.
LAYOUT = Layout(owner=CPU[0], devices=(CPU[1], CPU[3], CPU[2]), sizes=(3, 1, 2))
FINE = 1 + 2**-12


def layout(axis, **kwargs):
    return dataclasses.replace(LAYOUT, axis=axis, **kwargs)


def maps(axis):
    """Numbers that bfloat16 rounds, in shards and whole."""
    shape = [2, 4, 5, 6] if axis == -1 else [2, 6, 4, 5]
    whole = np.arange(1, 241, dtype="float32").reshape(shape) * FINE
    shards = []
    for piece, device in zip(
        np.split(whole, [3, 4], axis), LAYOUT.devices, strict=True
    ):
        with tf.device(device):
            shards.append(tf.constant(piece))
    return ShardedTensor(shards, layout(axis)), whole


def rounded(x):
    return tf.cast(tf.cast(x, "bfloat16"), "float32").numpy()


@pytest.mark.parametrize("wire", [None, "bfloat16"])
@pytest.mark.parametrize("axis", [-1, -3])
def test_shards_go_to_every_device_and_no_chief(axis, wire):
    sharded, whole = maps(axis)
    devices = [CPU[2], CPU[1], CPU[2]]
    weights = (FINE, 256.0, 0.0)
    with tf.GradientTape() as tape:
        tape.watch(sharded.shards)
        copies = everywhere(sharded, devices, CPU[0], wire)
        loss = tf.add_n(
            [
                tf.reduce_sum(copy * weight)
                for copy, weight in zip(copies, weights, strict=True)
            ]
        )
    assert [copy.device for copy in copies] == devices
    # One copy for a device that is named twice.
    assert copies[0] is copies[2]
    for copy, device in zip(copies, devices, strict=True):
        expected = np.split(whole, [3, 4], axis)
        if wire:
            expected = [
                piece if holder == device else rounded(piece)
                for piece, holder in zip(expected, LAYOUT.devices, strict=True)
            ]
        np.testing.assert_array_equal(copy, np.concatenate(expected, axis))
    gradients = tape.gradient(loss, sharded.shards)
    for gradient, device in zip(gradients, LAYOUT.devices, strict=True):
        assert gradient.device == device
        own = FINE if wire is None or device == CPU[2] else 1.0
        np.testing.assert_array_equal(
            gradient, np.full_like(gradient, 256 + own)
        )


def test_a_device_that_is_named_twice_is_sent_one_copy():
    sharded, _ = maps(-1)
    graph = tf.function(everywhere).get_concrete_function(
        sharded, [CPU[2], CPU[1], CPU[2]], CPU[0]
    )
    joins = [op for op in graph.graph.get_operations() if "Concat" in op.type]
    assert sorted(op.device for op in joins) == [CPU[1], CPU[2]]


@pytest.mark.parametrize("wire", [None, "bfloat16"])
@pytest.mark.parametrize("axis", [-1, -3])
def test_channels_of_a_whole_go_to_their_devices(axis, wire):
    """The owner's own do not travel, and are not rounded."""
    _, whole = maps(axis)
    wanted = layout(axis, owner=CPU[1], wire=wire)
    with tf.device(CPU[1]):
        x = tf.constant(whole)
    with tf.GradientTape() as tape:
        tape.watch(x)
        own = in_shards(x, wanted)
        loss = tf.add_n([tf.reduce_sum(shard) * FINE for shard in own.shards])
    assert own.layout == wanted
    expected = np.split(whole, [3, 4], axis)
    slopes = [np.full_like(piece, FINE) for piece in expected]
    if wire:
        expected[1:] = [rounded(piece) for piece in expected[1:]]
        slopes[1:] = [rounded(piece) for piece in slopes[1:]]
    for shard, piece, device in zip(
        own.shards, expected, LAYOUT.devices, strict=True
    ):
        assert shard.device == device
        assert shard.dtype == tf.float32
        np.testing.assert_array_equal(shard, piece)
    gradient = tape.gradient(loss, x)
    assert gradient.device == CPU[1]
    np.testing.assert_array_equal(gradient, np.concatenate(slopes, axis))


def test_channels_that_lie_apart_already_stay():
    sharded, whole = maps(-1)
    assert in_shards(sharded, layout(-1, wire="bfloat16")) is sharded
    others = in_shards(sharded, layout(-1, sizes=(1, 2, 3)))
    for shard, piece in zip(
        others.shards, np.split(whole, [1, 3], -1), strict=True
    ):
        np.testing.assert_array_equal(shard, piece)
