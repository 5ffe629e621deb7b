"""Shapes the ops infer, and what they say of shapes that do not fit."""

import re

import pytest
import tensorflow as tf

from tf_convpar import ops


@pytest.fixture(params=[True, False], ids=["native", "python"])
def native(request):
    if request.param and not ops.load():
        pytest.skip(ops.build_report().verdict)
    return request.param


def inferred_concat(native, shapes, axis=-1):
    signature = [tf.TensorSpec(shape) for shape in shapes]

    @tf.function(input_signature=signature)
    def joined(*shards):
        return ops.concat_shards(shards, axis, native=native)

    return joined.get_concrete_function().output_shapes


def inferred_split(native, shape, sizes, axis=-1):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def cut(value):
        return ops.split_shards(value, sizes, axis, native=native)

    return cut.get_concrete_function().output_shapes


@pytest.mark.parametrize(
    ("shapes", "axis", "expected"),
    [
        ([(8, 4, 3), (8, 4, 5)], -1, [8, 4, 8]),
        ([(None, 4, 3), (8, None, 5)], -1, [8, 4, 8]),
        ([(8, 3, 4), (8, 5, 4)], 1, [8, 8, 4]),
        ([(8, 4, None), (8, 4, 5)], -1, [8, 4, None]),
        ([(None, 3, None, None), (None, 0, 7, None)], 1, [None, 3, 7, None]),
        ([None, (8, 4, 5)], -1, [8, 4, None]),
        ([None, None], -1, None),
    ],
)
def test_concat_infers(native, shapes, axis, expected):
    actual = inferred_concat(native, shapes, axis)
    if expected is None:
        assert actual.rank is None
    else:
        assert actual.as_list() == expected


@pytest.mark.parametrize(
    ("shape", "axis", "expected"),
    [
        ((8, 4, 5), -1, [[8, 4, 2], [8, 4, 3]]),
        ((None, None, None), -1, [[None, None, 2], [None, None, 3]]),
        ((8, 5, None), 1, [[8, 2, None], [8, 3, None]]),
    ],
)
def test_split_infers(native, shape, axis, expected):
    actual = inferred_split(native, shape, [2, 3], axis)
    assert [shape.as_list() for shape in actual] == expected


def test_split_of_unknown_rank(native):
    for shape in inferred_split(native, None, [2, 3]):
        assert shape.rank is None


CONCAT_ERRORS = [
    (
        [(2, 4, 3), (2, 4, 1), (2, 5, 3)],
        -1,
        "ConcatShards: Expected shards that differ in axis -1 only, as shard 0 "
        "of shape [2,4,3]. Received shard 2 of shape [2,5,3]",
    ),
    (
        [(2, 4, 3), (2, 4, 3, 3)],
        -1,
        "ConcatShards: Expected shards that differ in axis -1 only, as shard 0 "
        "of shape [2,4,3]. Received shard 1 of shape [2,4,3,3]",
    ),
    (
        [(2, 4, 3), (2, 4, 4)],
        1,
        "ConcatShards: Expected shards that differ in axis 1 only, as shard 0 "
        "of shape [2,4,3]. Received shard 1 of shape [2,4,4]",
    ),
    (
        [(3, 4), (3,)],
        -1,
        "ConcatShards: Expected tensors of rank 2 to 5. Received shard 1 of "
        "shape [3]",
    ),
    (
        [(1, 1, 1, 1, 1, 1)],
        -1,
        "ConcatShards: Expected tensors of rank 2 to 5. Received shard 0 of "
        "shape [1,1,1,1,1,1]",
    ),
    (
        [(2, 4, 3)],
        2,
        "ConcatShards: Expected axis to be -1 (channels last) or 1 (channels "
        "first). Received axis=2",
    ),
]
SPLIT_ERRORS = [
    (
        (2, 4, 6),
        [1, 3, 4],
        -1,
        "SplitShards: Expected sizes that sum to 6, axis -1 of the value of "
        "shape [2,4,6]. Received sizes [1,3,4]: shard 2 of shape [2,4,4] ends "
        "at 8",
    ),
    (
        (2, 9, 6),
        [3, 2],
        1,
        "SplitShards: Expected sizes that sum to 9, axis 1 of the value of "
        "shape [2,9,6]. Received sizes [3,2]: shard 1 of shape [2,2,6] ends "
        "at 5",
    ),
    (
        (2, 4, 6),
        [7, -1],
        -1,
        "SplitShards: Expected sizes of zero or more. Received size -1 for "
        "shard 1",
    ),
    (
        (6,),
        [3, 3],
        -1,
        "SplitShards: Expected tensors of rank 2 to 5. Received value of "
        "shape [6]",
    ),
    (
        (2, 4, 6),
        [3, 3],
        0,
        "SplitShards: Expected axis to be -1 (channels last) or 1 (channels "
        "first). Received axis=0",
    ),
]


@pytest.mark.parametrize(("shapes", "axis", "message"), CONCAT_ERRORS)
def test_concat_errors(native, shapes, axis, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        inferred_concat(native, shapes, axis)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=re.escape(message)
    ):
        ops.concat_shards([tf.ones(s) for s in shapes], axis, native=native)


@pytest.mark.parametrize(("shape", "sizes", "axis", "message"), SPLIT_ERRORS)
def test_split_errors(native, shape, sizes, axis, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        inferred_split(native, shape, sizes, axis)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=re.escape(message)
    ):
        ops.split_shards(tf.ones(shape), sizes, axis, native=native)


def test_unknown_dimensions_that_clash_are_told_apart(native):
    # Shard 0 goes with both others, which do not go with each other.
    message = "as shard 1 of shape [2,4,?]. Received shard 2 of shape [2,5,?]"
    shapes = [(2, None, 3), (2, 4, None), (2, 5, None)]
    with pytest.raises(ValueError, match=re.escape(message)):
        inferred_concat(native, shapes)


def test_a_clash_seen_only_at_run_time(native):
    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec(None)])
    def joined(a, b):
        return ops.concat_shards([a, b], native=native)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[2,5,3\]"):
        joined(tf.ones((2, 4, 3)), tf.ones((2, 5, 3)))


def test_sizes_that_miss_only_at_run_time(native):
    @tf.function(input_signature=[tf.TensorSpec((2, None))])
    def cut(value):
        return ops.split_shards(value, [2, 2], native=native)

    assert [s.shape.as_list() for s in cut(tf.ones((2, 4)))] == [[2, 2]] * 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        cut(tf.ones((2, 5)))


def test_as_many_dtypes_as_sizes(native):
    with pytest.raises(ValueError, match="each of 2 sizes. Received 1 dtypes"):
        ops.split_shards(
            tf.ones((2, 4)), [2, 2], dtypes=[tf.float32], native=native
        )
    if native:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Received 2 sizes and 1"
        ):
            ops.module().tf_convpar_split_shards(
                tf.ones((2, 4)), sizes=[2, 2], U=[tf.float32]
            )


def test_nothing_to_join_or_to_cut_into(native):
    with pytest.raises(ValueError, match="Received none"):
        ops.concat_shards([], native=native)
    with pytest.raises(ValueError, match="Received none"):
        ops.split_shards(tf.ones((2, 2)), [], native=native)


def test_other_dtypes_are_refused_by_name(native):
    with pytest.raises(TypeError, match="Received int32 for shard 1"):
        ops.concat_shards([tf.ones((2, 1)), [[1], [2]]], native=native)
    with pytest.raises(TypeError, match="Received int32 for `value`"):
        ops.split_shards([[1, 2]], [1, 1], native=native)
    with pytest.raises(TypeError, match="Received int64 for `dtype`"):
        ops.concat_shards([tf.ones((2, 1))], dtype="int64", native=native)
