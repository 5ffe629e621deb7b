"""Packs of tensors, and variables beside what was read of them."""

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar import ops

SHAPES = [(3, 4), (), (2, 1, 5)]


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape)) for shape in SHAPES]


def packed_of(variables):
    return ops.pack([variable.read_value() for variable in variables])


def handles_of(variables):
    return tf.stack([variable.handle for variable in variables])


def test_a_pack_gives_back_its_tensors(values):
    values = [*values, tf.constant(["a", "b"]), tf.constant(7)]
    kinds = [x.dtype for x in values], [x.shape for x in values]

    @tf.function
    def again(packed):
        found = ops.unpack(packed, *kinds)
        assert [x.shape for x in found] == kinds[1]
        return found

    packed = ops.pack(values)
    assert packed.shape == ()
    for found in (again(packed), ops.unpack(packed, *kinds)):
        for x, expected in zip(found, values, strict=True):
            np.testing.assert_array_equal(x, expected)


def test_other_types_than_a_pack_has(values):
    packed = ops.pack(values)
    shapes = [x.shape for x in values]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected a pack"):
        ops.unpack(packed, [tf.float32] * len(values), shapes)
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 tensors"):
        ops.unpack(packed, [tf.float64] * 2, shapes[:2])


def test_what_is_no_pack():
    other = tf.raw_ops.EmptyTensorList(
        element_shape=[2], max_num_elements=1, element_dtype=tf.float32
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="what `Pack`"):
        ops.unpack(other, [tf.float32], [(2,)])


CHANGES = {
    "assign": lambda v: v.assign(v.read_value() * 2),
    "the same again": lambda v: v.assign(v.numpy()),
    "in place": lambda v: v.assign_add(tf.ones_like(v)),
    "some rows": lambda v: v.scatter_nd_add([[0]], tf.ones((1, 3))),
    "an optimizer": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=0.1, delta=tf.ones_like(v)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(change):
    variables = [tf.Variable(tf.ones((2, 3))), tf.Variable(tf.zeros((4, 3)))]
    packed, handles = packed_of(variables), handles_of(variables)
    before = [variable.numpy() for variable in variables]
    assert ops.unchanged(handles, packed)
    assert ops.unchanged(handles, packed)
    change(variables[1])
    assert not ops.unchanged(handles, packed)
    kept = ops.unpack(packed, [tf.float32] * 2, [(2, 3), (4, 3)])
    for x, expected in zip(kept, before, strict=True):
        np.testing.assert_array_equal(x, expected)


def test_what_is_written_for_each_reader_counts_as_changed():
    """After a sparse update TensorFlow copies for readers, and then writes."""
    variable = tf.Variable(tf.zeros((4, 3)))
    variable.scatter_nd_add([[0]], tf.ones((1, 3)))
    packed, handles = packed_of([variable]), handles_of([variable])
    assert not ops.unchanged(handles, packed)


def test_as_many_variables_as_values():
    variables = [tf.Variable(1.0), tf.Variable(2.0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Received 1 and"):
        ops.unchanged(handles_of(variables[:1]), packed_of(variables))


def test_a_variable_that_is_gone():
    variable = tf.Variable(1.0)
    packed = packed_of([variable])
    handles = handles_of([variable])
    del variable
    # A handle holds what it is of.
    assert ops.unchanged(handles, packed)
