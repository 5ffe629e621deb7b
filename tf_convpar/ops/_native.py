"""The compiled ops on shards; the gradient of each is the other."""

from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device
from ._twin import split_like


def concat(shards: list[tf.Tensor], axis: int, dtype: tf.DType) -> tf.Tensor:
    """Runs the compiled ConcatShards."""
    return _library.module().tf_convpar_concat_shards(
        shards, U=dtype, axis=axis
    )


def split(
    value: tf.Tensor, sizes: list[int], axis: int, dtypes: list[tf.DType]
) -> list[tf.Tensor]:
    """Runs the compiled SplitShards."""
    return _library.module().tf_convpar_split_shards(
        value, U=dtypes, sizes=sizes, axis=axis
    )


# The device is read from the outputs: under a tape, `op` is a stand-in that has
# no device, both in eager mode and in graphs.


@tf.RegisterGradient("TfConvpar>ConcatShards")
def _concat_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    with same_device(op.outputs[0].device):
        return split_like(upstream, op.inputs, op.get_attr("axis"), split)


@tf.RegisterGradient("TfConvpar>SplitShards")
def _split_gradient(op: Any, *upstream: tf.Tensor) -> tf.Tensor:
    with same_device(op.outputs[0].device):
        return concat(list(upstream), op.get_attr("axis"), op.inputs[0].dtype)
