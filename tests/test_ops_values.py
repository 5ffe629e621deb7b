"""What the ops compute: compiled, for GPUs, and their twin alike."""

import itertools

import cuda_on_host
import gpus
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from cases import but_slow

from tf_convpar import ops

DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64]


@pytest.fixture(params=["native", "python", "cuda_on_host", "gpu"])
def native(request, monkeypatch):
    kind = request.param
    if kind == "cuda_on_host":
        if cuda_on_host.library() is None:
            pytest.skip("no C++ compiler")
        cuda_on_host.instead_of_ops(monkeypatch)
    elif kind == "native" and not ops.load():
        pytest.skip(ops.build_report().verdict)
    # Where there is a card TensorFlow takes that unless it is told otherwise.
    device = gpus.first_with_kernels() if kind == "gpu" else "CPU:0"
    with tf.device(device):
        yield kind != "python"


def numbers(shape, dtype, seed=0):
    values = np.random.default_rng(seed).normal(size=shape) * 100
    return values.astype(dtype.as_numpy_dtype)


def converted(array, dtype):
    """As tf.cast: through float32 where neither side is float32."""
    if array.dtype == dtype.as_numpy_dtype:
        return array
    return array.astype(np.float32).astype(dtype.as_numpy_dtype)


def cast(value, dtype):
    """By the processor: a card makes 0 of the smallest numbers."""
    with tf.device("CPU:0"):
        return tf.cast(tf.identity(value), dtype)


def assert_same_bits(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    # The sign of a NaN is not TensorFlow's to promise.
    numbers = actual == actual
    np.testing.assert_array_equal(numbers, expected == expected)
    np.testing.assert_array_equal(
        np.ascontiguousarray(actual[numbers]).view(np.uint8),
        np.ascontiguousarray(expected[numbers]).view(np.uint8),
    )


def with_smallest_as_in(actual, array, dtype):
    """`array` in another dtype, where the smallest numbers may have become 0.

    TensorFlow's threads make 0 of numbers below the least normal float32, and
    some of a card's instructions do. Others keep them.
    """
    actual, exact = np.asarray(actual), converted(array, dtype)
    smallest = (abs(array.astype(np.float64)) < 2.0**-126) & (actual == 0)
    return np.where(smallest, actual, exact)


def special(dtype):
    """Every kind of number, over two vector lengths and a tail."""
    bits = [0, 1, 0x7F800001, 0x7FC00000, 0x7F800000, 0x7F7FFFFF, 0x007FFFFF]
    # Halfway cases of bfloat16 and of half, and their neighbours.
    for middle in (0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x477FF000):
        bits += [middle - 1, middle, middle + 1]
    bits += [0x33000000, 0x33000001, 0x38000000, 0x387FC000, 0x387FE000]
    bits += [b | 0x80000000 for b in bits]
    floats = np.resize(np.array(bits, np.uint32), 131).view(np.float32)
    with np.errstate(all="ignore"):
        return floats.astype(dtype.as_numpy_dtype)


@pytest.mark.parametrize("target", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("source", DTYPES, ids=lambda d: d.name)
def test_conversion_is_that_of_cast(native, source, target):
    rows = np.stack([special(source), special(source)[::-1]])
    random = numbers((2, 2100), source)
    value = np.concatenate([rows, random], axis=1)
    widths = [7, 124, 0, 1099, 1001]
    parts = np.split(value, np.cumsum(widths)[:-1], -1)

    joined = ops.concat_shards(parts, dtype=target, native=native)
    assert_same_bits(joined, with_smallest_as_in(joined, value, target))

    cut = ops.split_shards(value, widths, dtypes=target, native=native)
    for shard, part in zip(cut, parts, strict=True):
        assert_same_bits(shard, with_smallest_as_in(shard, part, target))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_every_rank_and_axis(native, rank, axis):
    shape = [2, 3, 4, 5, 6][:rank]
    shapes = [[*shape], [*shape], [*shape]]
    for width, each in zip((1, 5, 2), shapes, strict=True):
        each[axis] = width
    arrays = [numbers(s, tf.float32, i) for i, s in enumerate(shapes)]

    joined = ops.concat_shards(arrays, axis, native=native)
    np.testing.assert_array_equal(joined, np.concatenate(arrays, axis))

    cut = ops.split_shards(joined, [1, 5, 2], axis, native=native)
    for shard, array in zip(cut, arrays, strict=True):
        np.testing.assert_array_equal(shard, array)


def test_shards_may_each_have_a_dtype_and_first_decides(native):
    shards = [numbers((4, 3, i + 1), d) for i, d in enumerate(DTYPES)]
    joined = ops.concat_shards(shards, native=native)
    assert joined.dtype == tf.float16
    back = ops.split_shards(joined, [1, 2, 3, 4], dtypes=DTYPES, native=native)
    assert [shard.dtype for shard in back] == DTYPES
    for shard, original in zip(back, shards, strict=True):
        expected = original.astype(np.float32).astype(np.float16)
        np.testing.assert_array_equal(
            np.asarray(shard, np.float32), np.asarray(expected, np.float32)
        )


def test_one_dtype_for_all_shards(native):
    cut = ops.split_shards(
        tf.ones((2, 4)), [3, 1], dtypes="bfloat16", native=native
    )
    assert [shard.dtype for shard in cut] == [tf.bfloat16] * 2


@pytest.mark.parametrize("axis", [-1, 1])
def test_zero_width_and_empty_batch(native, axis):
    for batch, sizes in ((3, [0, 4, 0, 2]), (3, [0, 0]), (0, [1, 2])):
        shape = [batch, 5, 5]
        shape[axis] = sum(sizes)
        value = numbers(shape, tf.float32)
        cut = ops.split_shards(value, sizes, axis, native=native)
        expected = np.split(value, np.cumsum(sizes)[:-1], axis)
        assert [s.shape.as_list() for s in cut] == [
            list(e.shape) for e in expected
        ]
        joined = ops.concat_shards(cut, axis, native=native)
        np.testing.assert_array_equal(joined, value)


@pytest.mark.parametrize("sizes", [[6], [0, 6], [6, 0]])
@pytest.mark.parametrize("target", [tf.float32, tf.bfloat16])
def test_one_shard_that_is_everything(native, sizes, target):
    value = tf.constant(numbers((2, 3, 6), tf.float32))
    cut = ops.split_shards(value, sizes, dtypes=target, native=native)
    whole = cut[sizes.index(6)]
    np.testing.assert_array_equal(whole, cast(value, target))
    joined = ops.concat_shards(cut, native=native, dtype=tf.float32)
    np.testing.assert_array_equal(joined, tf.cast(whole, tf.float32))


@pytest.mark.parametrize(
    ("sizes", "source", "target"),
    but_slow(
        itertools.product(
            ([700, 437], [1, 300, 836], [137] * 8),
            *2 * [(tf.float32, tf.bfloat16)],
        ),
        [
            ([700, 437], tf.float32, tf.float32),
            ([1, 300, 836], tf.float32, tf.bfloat16),
            ([137] * 8, tf.bfloat16, tf.float32),
            ([700, 437], tf.bfloat16, tf.bfloat16),
        ],
    ),
)
def test_large_enough_for_threads_and_streaming(native, source, target, sizes):
    # 18 MiB or more on the narrower side, in rows that start anywhere.
    shape = (9001, sum(sizes))
    value = tf.random.normal(shape, seed=1)
    value = tf.cast(value, source)
    parts = [tf.identity(part) for part in tf.split(value, sizes, -1)]
    joined = ops.concat_shards(parts, dtype=target, native=native)
    expected = cast(value, target)
    assert bool(tf.reduce_all(joined == expected))
    cut = ops.split_shards(value, sizes, dtypes=target, native=native)
    for shard, part in zip(cut, parts, strict=True):
        assert bool(tf.reduce_all(shard == cast(part, target)))


@hypothesis.settings(
    max_examples=60,
    deadline=None,
    database=None,
    # One fixture for all examples is what is meant.
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(data=st.data())
def test_any_widths_ranks_and_dtypes_agree_with_numpy(native, data):
    rank = data.draw(st.integers(2, 5))
    axis = data.draw(st.sampled_from([-1, 1]))
    widths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    shape = data.draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    dtypes = [data.draw(st.sampled_from(DTYPES)) for _ in widths]
    target = data.draw(st.sampled_from(DTYPES))
    arrays = []
    for i, (width, dtype) in enumerate(zip(widths, dtypes, strict=True)):
        each = [*shape]
        each[axis] = width
        arrays.append(numbers(each, dtype, i))
    expected = np.concatenate([converted(a, target) for a in arrays], axis)
    joined = ops.concat_shards(arrays, axis, target, native=native)
    assert_same_bits(joined, expected)
    cut = ops.split_shards(joined, widths, axis, dtypes, native=native)
    pieces = np.split(expected, np.cumsum(widths)[:-1], axis)
    for shard, piece, dtype in zip(cut, pieces, dtypes, strict=True):
        assert_same_bits(shard, converted(piece, dtype))
