"""Checks of shapes in the twin, with the messages of the compiled ops.

Their sentences are those of `custom_ops/ops/messages.h`.
"""

from collections.abc import Sequence

import tensorflow as tf

MIN_RANK = 2
MAX_RANK = 5


def fail(message: str) -> Exception:
    """The exception that the compiled op would raise; the caller raises it."""
    if tf.executing_eagerly():
        return tf.errors.InvalidArgumentError(None, None, message)
    return ValueError(message)


def check_concat(shapes: Sequence[tf.TensorShape], axis: int) -> None:
    """Raises unless shards of these static shapes may be joined."""
    _check_axis("ConcatShards", axis)
    for i, shape in enumerate(shapes):
        _check_rank("ConcatShards", f"shard {i}", shape)
        for j in range(i):
            if not _compatible(shapes[j], shape, axis):
                raise fail(
                    "ConcatShards: Expected shards that differ in axis "
                    f"{axis} only, as shard {j} of shape "
                    f"{describe(shapes[j])}. Received shard {i} of shape "
                    f"{describe(shape)}"
                )


def check_split(shape: tf.TensorShape, sizes: list[int], axis: int) -> None:
    """Raises unless a value of this static shape may be cut by these sizes."""
    _check_axis("SplitShards", axis)
    for i, size in enumerate(sizes):
        if size < 0:
            raise fail(
                "SplitShards: Expected sizes of zero or more. Received size "
                f"{size} for shard {i}"
            )
    _check_rank("SplitShards", "value", shape)
    width = None if shape.rank is None else shape[axis]
    if width is None or sum(sizes) == width:
        return
    # The shard to blame: the first that ends past the width, or the last.
    end = 0
    for i, size in enumerate(sizes):  # noqa: B007
        end += size
        if end > width:
            break
    dims = shape.as_list()
    dims[axis] = size
    listed = ",".join(map(str, sizes))
    raise fail(
        f"SplitShards: Expected sizes that sum to {width}, axis {axis} of the "
        f"value of shape {describe(shape)}. Received sizes [{listed}]: shard "
        f"{i} of shape {describe(tf.TensorShape(dims))} ends at {end}"
    )


def describe(shape: tf.TensorShape) -> str:
    """A shape as TensorFlow's C++ writes it, such as `[2,?,3]`."""
    if shape.rank is None:
        return "?"
    dims = ("?" if dim is None else str(dim) for dim in shape)
    return f"[{','.join(dims)}]"


def _check_axis(op: str, axis: int) -> None:
    if axis not in (-1, 1):
        raise fail(
            f"{op}: Expected axis to be -1 (channels last) or 1 (channels "
            f"first). Received axis={axis}"
        )


def _check_rank(op: str, what: str, shape: tf.TensorShape) -> None:
    if shape.rank is not None and not MIN_RANK <= shape.rank <= MAX_RANK:
        raise fail(
            f"{op}: Expected tensors of rank {MIN_RANK} to {MAX_RANK}. "
            f"Received {what} of shape {describe(shape)}"
        )


def _compatible(a: tf.TensorShape, b: tf.TensorShape, axis: int) -> bool:
    """Whether both may be shards of one tensor; an unknown size fits any."""
    if a.rank is None or b.rank is None:
        return True
    if a.rank != b.rank:
        return False
    skip = axis % a.rank
    pairs = enumerate(zip(a, b, strict=True))
    return all(d == skip or m in (None, n) or n is None for d, (m, n) in pairs)
