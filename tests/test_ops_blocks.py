"""Vectors in few bits: the compiled ops beside TensorFlow's, and NumPy."""

import itertools

import narrower
import numpy as np
import pytest
import tensorflow as tf
from replica_cases import rounded

from tf_convpar import ops
from tf_convpar.ops import BLOCK

SIZES = [1, 255, BLOCK, BLOCK + 1, 5 * BLOCK - 3]


def numbers(size, seed=0):
    """Of different magnitudes; a block of zeros, and one large value."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size) * 10.0 ** rng.integers(-6, 6, size)
    values[BLOCK : 2 * BLOCK] = 0
    return values.astype("float32")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", [8, 4])
def test_compiled_ones_give_the_same_bits(size, bits):
    values, left, other = (numbers(size, seed) for seed in range(3))
    for before, less in itertools.product((None, left), (None, other)):
        (message, rest), (twin, rest_of_twin) = (
            ops.encode_blocks(values, bits, before, less=less, native=native)
            for native in (True, False)
        )
        np.testing.assert_array_equal(message, twin)
        if before is None:
            assert rest is rest_of_twin is None
        else:
            np.testing.assert_array_equal(rest, rest_of_twin)
        for added in (None, other):
            np.testing.assert_array_equal(
                *(
                    ops.decode_blocks(message, size, bits, added, native=native)
                    for native in (True, False)
                )
            )


@pytest.mark.parametrize("native", [True, False])
def test_what_is_taken_away_and_added(native):
    size = 3 * BLOCK + 5
    values, less = numbers(size), numbers(size, seed=1)
    message, _ = ops.encode_blocks(values - less, 8, native=native)
    np.testing.assert_array_equal(
        ops.encode_blocks(values, 8, less=less, native=native)[0], message
    )
    added = tf.constant(less)
    np.testing.assert_array_equal(
        ops.decode_blocks(message, size, 8, added, native=native),
        less + ops.decode_blocks(message, size, 8, native=native),
    )
    # Whose own it is, it stays as it was.
    np.testing.assert_array_equal(added, less)


NARROWER = """
import test_ops_blocks as blocks

for size in blocks.SIZES:
    for bits in (8, 4):
        blocks.test_compiled_ones_give_the_same_bits(size, bits)
"""


@pytest.mark.parametrize("isa", ["base", "avx2"])
def test_narrower_vectors_give_the_same_bits(isa):
    narrower.check(isa, NARROWER)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("bits", [8, 4])
def test_numpy_rounds_as_well(bits, native):
    values = numbers(5 * BLOCK - 3)
    message, _ = ops.encode_blocks(values, bits, native=native)
    decoded = ops.decode_blocks(message, len(values), bits, native=native)
    np.testing.assert_allclose(
        decoded, rounded(values, f"int{bits}"), rtol=1e-6
    )


@pytest.mark.parametrize("native", [True, False])
def test_nothing_is_lost_over_time(native):
    values = numbers(2 * BLOCK + 7)
    left, total = tf.zeros(len(values)), np.zeros(len(values))
    for _ in range(50):
        message, left = ops.encode_blocks(values, 4, left, native=native)
        total += ops.decode_blocks(message, len(values), 4, native=native)
    # What is left is at most half of a step, of which the largest has seven.
    for begin in range(0, len(values), BLOCK):
        block = slice(begin, begin + BLOCK)
        most = np.abs(values[block]).max() * 1.1 / 7
        exact = 50 * values[block].astype("float64")
        assert np.abs(total[block] - exact).max() <= most + 1e-5 * most * 50


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_none_afterwards(wrong, native):
    values = numbers(3 * BLOCK)
    values[BLOCK + 5] = wrong
    message, _ = ops.encode_blocks(values, 8, native=native)
    decoded = ops.decode_blocks(message, len(values), 8, native=native)
    assert np.isnan(decoded[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(decoded[:BLOCK]).all()
    assert np.isfinite(decoded[2 * BLOCK :]).all()


def test_wrong_sizes_are_refused():
    module = ops.module()
    with pytest.raises(tf.errors.InvalidArgumentError, match="260 bytes of 9"):
        module.tf_convpar_decode_blocks(
            message=tf.zeros([259], tf.uint8),
            added=tf.zeros([0]),
            size=9,
            bits=8,
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="9 values to add"):
        module.tf_convpar_decode_blocks(
            message=tf.zeros([260], tf.uint8),
            added=tf.zeros([8]),
            size=9,
            bits=8,
        )
    for less, left in ((3, 0), (0, 3), (4, 3)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="of one size"):
            module.tf_convpar_encode_blocks(
                values=tf.zeros([4]),
                less=tf.zeros([less]),
                left=tf.zeros([left]),
                bits=8,
            )
