"""Elementwise ops and sums of tensors in shards, each shard where it is.

TensorFlow's dispatch hands its functions over, and Python its operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Union

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.tensorflow import bound_arguments
from tf_convpar.placement._cutting import split
from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import SampleLayout
from tf_convpar.placement._operators import forward_operators
from tf_convpar.placement._operators import on_merged
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor


def map_shards(
    fn: Callable[..., Any], layout: AnyLayout, *operands: Any
) -> ShardedTensor | Any:
    """Applies an elementwise `fn` shard by shard, on the shards' devices.

    Operands are sharded tensors, values of the merged shape (cut first), or
    values that broadcast along the axis that is cut. If an operand is none of
    these, `fn` is applied once, to merged operands.
    """
    results = _map(fn, layout, *operands)
    if results is None:
        return fn(*(tf.convert_to_tensor(operand) for operand in operands))
    return ShardedTensor.laid_out(results, layout)


def _map(
    fn: Callable[..., Any], layout: AnyLayout, *operands: Any
) -> list[Any] | None:
    """What `fn` returns on each device; None if operands lie otherwise."""
    pieces = []
    for operand in operands:
        piece = _pieces(operand, layout)
        if piece is None:
            return None
        pieces.append(piece)
    return [
        on_device(fn, device)(*operands_there)
        for device, operands_there in zip(
            layout.devices, zip(*pieces, strict=True), strict=True
        )
    ]


def _pieces(operand: Any, layout: AnyLayout) -> Sequence[Any] | None:
    if isinstance(operand, keras.Variable):
        operand = operand.value
    if hasattr(operand, "sharded_value"):
        operand = operand.sharded_value()
    if isinstance(operand, ShardedTensor):
        alike = operand.layout.matches(layout)
        return operand.trimmed().shards if alike else None
    operand = tf.convert_to_tensor(operand)
    if isinstance(layout, SampleLayout):
        # Only a scalar surely has no sample axis.
        scalar = operand.shape.rank == 0
        return [operand] * len(layout.shares) if scalar else None
    if operand.shape.rank is not None and (
        operand.shape.rank < -layout.axis or operand.shape[layout.axis] == 1
    ):
        return [operand] * len(layout.sizes)
    return split(operand, layout) if layout.fits(operand.shape) else None


# A `typing.Union`, since TensorFlow's dispatch does not read `X | Y`.
_Other = Union[  # noqa: UP007
    tf.Tensor, tf.Variable, keras.Variable, np.ndarray, float, int, bool
]


# Functions that TensorFlow counts as elementwise, and that are not: they go
# along an axis, or draw one number for all elements.
_NOT_ELEMENTWISE = ("log_softmax", "random_brightness")


@tf.experimental.dispatch_for_unary_elementwise_apis(ShardedTensor)
def _unary(fn: Callable[..., Any], x: ShardedTensor) -> Any:
    name, arguments = bound_arguments(fn)
    if name in _NOT_ELEMENTWISE or any(map(_has_axes, arguments)):
        return on_merged(fn, x)
    return _elementwise(fn, x)


def _has_axes(x: Any) -> bool:
    """Whether an argument beside the tensor has a number for each element.

    Bounds to which elements are clipped may be such.
    """
    if isinstance(x, list | tuple):
        return True
    return bool(tf.TensorShape(getattr(x, "shape", ())).rank != 0)


@tf.experimental.dispatch_for_binary_elementwise_apis(
    ShardedTensor, ShardedTensor
)
def _binary(fn: Callable[..., Any], x: ShardedTensor, y: ShardedTensor) -> Any:
    return _elementwise(fn, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(ShardedTensor, _Other)
def _binary_left(fn: Callable[..., Any], x: ShardedTensor, y: _Other) -> Any:
    return _elementwise(fn, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(_Other, ShardedTensor)
def _binary_right(fn: Callable[..., Any], x: _Other, y: ShardedTensor) -> Any:
    return _elementwise(fn, x, y)


def _elementwise(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies `fn`; Python numbers take the dtype of a sharded operand."""
    first = next(x for x in operands if isinstance(x, ShardedTensor))
    if any(x is None for x in operands):
        return on_merged(fn, *operands)
    typed = (_typed(x, first.dtype) for x in operands)
    return map_shards(fn, first.layout, *typed)


def _typed(x: Any, dtype: tf.DType) -> Any:
    if isinstance(x, bool | int | float):
        return tf.constant(x, dtype)
    if hasattr(x, "__tf_tensor__") or tf.is_tensor(x):
        return x
    return tf.convert_to_tensor(x, dtype_hint=dtype)


forward_operators(ShardedTensor, _elementwise)


def _reduction(
    fn: Callable[..., Any], combine: Callable[[list[tf.Tensor]], tf.Tensor]
) -> None:
    """Makes a reduction work shard by shard.

    If the cut axis is reduced, each device reduces its shard, and the owner
    combines these results. Otherwise the result is a sharded tensor again.
    """

    @functools.wraps(fn)
    def reduce(
        input_tensor: ShardedTensor,
        axis: Any = None,
        keepdims: bool = False,
        name: Any = None,
    ) -> Any:
        layout, rank = input_tensor.layout, input_tensor.ndim
        split_axis = layout.axis % rank
        wanted = range(rank) if axis is None else np.atleast_1d(axis).tolist()
        axes = {a % rank for a in wanted}
        local = functools.partial(
            fn, axis=sorted(axes), keepdims=keepdims, name=name
        )
        parts = _map(local, layout, input_tensor)
        assert parts is not None  # It lies as its own layout says.
        if split_axis not in axes:
            # A negative number of the cut axis changes when a later axis goes.
            stays = layout.axis == 0 or all(a < split_axis for a in axes)
            if keepdims or stays:
                return ShardedTensor.laid_out(parts, layout)
            return fn(tf.convert_to_tensor(input_tensor), axis, keepdims, name)
        return on_device(lambda *p: combine(list(p)), layout.owner)(*parts)

    tf.experimental.dispatch_for_api(fn, {"input_tensor": ShardedTensor})(
        reduce
    )


_reduction(tf.reduce_sum, tf.add_n)
_reduction(tf.reduce_all, lambda parts: functools.reduce(tf.logical_and, parts))
_reduction(tf.reduce_any, lambda parts: functools.reduce(tf.logical_or, parts))
_reduction(tf.reduce_max, lambda parts: functools.reduce(tf.maximum, parts))


@tf.experimental.dispatch_for_api(tf.clip_by_norm, {"t": ShardedTensor})
def _clip_by_norm(
    t: ShardedTensor, clip_norm: Any, axes: Any = None, name: Any = None
) -> Any:
    if axes is not None:
        return tf.clip_by_norm(tf.convert_to_tensor(t), clip_norm, axes, name)
    # The same formula as TensorFlow's, with the square root guarded at 0.
    squares = tf.reduce_sum(tf.square(t))
    positive = squares > 0
    norm = tf.where(positive, tf.sqrt(tf.where(positive, squares, 1)), squares)
    return t * clip_norm / tf.maximum(norm, clip_norm)
