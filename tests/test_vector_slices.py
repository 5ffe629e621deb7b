"""Consecutive parts of a vector: no copies where vector loads are aligned."""

import numpy as np
import pytest
import tensorflow as tf

from tf_convpar.placement import consecutive_slices


@pytest.mark.parametrize("sizes", [[48, 16, 36], [5, 0, 90, 5], [100], []])
def test_they_are_the_vector_cut(sizes):
    vector = tf.range(float(sum(sizes)))
    parts = consecutive_slices(vector, sizes)
    assert [part.shape[0] for part in parts] == sizes
    for part, expected in zip(
        parts, np.split(vector, np.cumsum(sizes)), strict=False
    ):
        np.testing.assert_array_equal(part, expected)


def test_aligned_ones_share_the_vectors_memory():
    vector = tf.random.normal([160])
    whole = np.from_dlpack(vector)
    shared = [
        np.shares_memory(whole, np.from_dlpack(part))
        for part in consecutive_slices(vector, [64, 32, 5, 59])
    ]
    # The third begins where the second ends, but ends between two loads.
    assert shared == [True, True, False, False]


def test_a_shared_part_keeps_its_values_when_the_variable_steps():
    variable = tf.Variable(tf.ones([64]))

    @tf.function
    def step():
        first, _ = consecutive_slices(variable.read_value(), [32, 32])
        variable.assign_sub(tf.ones([64]))
        with tf.control_dependencies([variable.read_value()]):
            return tf.identity(first)

    np.testing.assert_array_equal(step(), np.ones(32))
    np.testing.assert_array_equal(variable, np.zeros(64))


def test_sizes_of_another_length_are_refused():
    with pytest.raises(ValueError, match="sum to 8.*sum to 7"):
        consecutive_slices(tf.zeros([8]), [3, 4])
