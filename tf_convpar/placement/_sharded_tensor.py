"""A tensor in pieces that stay where they are.

The gradient of a sharded kernel is such a tensor. What Keras then does with
gradients (loss scaling, clipping, accumulation) consists of elementwise ops
and sums. TensorFlow's dispatch lets those run shard by shard, each on its own
device. Any other op sees the merged tensor, on the owner: correct by default,
fast where it matters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import Union

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.tensorflow import CompositeTensor
from tf_convpar._compat.tensorflow import CompositeTensorGradient
from tf_convpar._compat.tensorflow import Tensor
from tf_convpar.placement._cutting import merge
from tf_convpar.placement._cutting import split
from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._layout import SampleLayout
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._stand_in import counted
from tf_convpar.placement._stand_in import filled
from tf_convpar.placement._stand_in import trimmed


class _ByShards(CompositeTensorGradient):
    """Lets a tape differentiate a sharded tensor, or by it, shard by shard."""

    def get_gradient_components(self, value: ShardedTensor) -> list[Any]:
        return list(value.shards)

    def replace_gradient_components(
        self, value: ShardedTensor, component_grads: Sequence[Any]
    ) -> ShardedTensor | None:
        if any(grad is None for grad in component_grads):
            return None
        return value.with_shards(component_grads)


class ShardedTensor(CompositeTensor, Tensor):
    """A tensor cut along its channels or samples, each shard on a device.

    ```python
    gradient = tape.gradient(loss, layer.kernel)  # of a ConvParallel layer
    half = gradient / 2.0  # divided on the shards' devices
    dense = tf.convert_to_tensor(gradient)  # merged, on the owner
    ```
    """

    __composite_gradient__ = _ByShards()

    def __init__(
        self,
        shards: Sequence[tf.Tensor],
        layout: AnyLayout,
        counts: Sequence[Any] | None = None,
    ) -> None:
        self.shards = tuple(shards)
        # Of shards of samples, how many samples each has, where some may have
        # one that is made up (`_stand_in`); None where none has.
        self.counts = counts
        # Typed `Any`: callers that use more than the devices know which kind
        # of layout it is.
        self.layout: Any = layout
        # Results of `once`, by graph and key.
        self._made: dict[Any, Any] = {}

    @classmethod
    def of_samples(
        cls, shards: Sequence[tf.Tensor], layout: SampleLayout
    ) -> ShardedTensor:
        """Samples on their devices, at least one on each to compute on."""
        counts = counted(shards, layout.devices)
        if counts is None:
            return cls(shards, layout)
        return cls(filled(shards, counts, layout.devices), layout, counts)

    def with_shards(
        self, shards: Sequence[tf.Tensor], layout: AnyLayout | None = None
    ) -> ShardedTensor:
        """What was made of the shards, each on its device."""
        return ShardedTensor(shards, layout or self.layout, self.counts)

    def trimmed(self) -> ShardedTensor:
        """The samples alone, without those that are made up."""
        counts = self.counts
        if counts is None:
            return self
        devices = self.layout.devices
        return self.once(
            lambda: ShardedTensor(
                trimmed(self.shards, counts, devices), self.layout
            ),
            "trimmed",
        )

    def once(self, make: Callable[[], Any], key: Any) -> Any:
        """Calls `make` once for each graph and key, and keeps its result.

        So layers that branch off from one tensor share what is made of its
        shards, and what is sent for it.
        """
        key = _current_graph(), key
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def joined(self) -> tf.Tensor:
        """The merged tensor, on the owner."""
        shards = self.trimmed().shards
        return self.once(lambda: merge(shards, self.layout), "joined")

    def of_joined(self) -> ShardedTensor:
        """A sharded tensor of the same value, cut from the merged tensor.

        Gradients of its shards therefore go through the merged tensor.
        """
        merged = self.joined()
        cut = ShardedTensor(split(merged, self.layout), self.layout)
        if isinstance(self.layout, SampleLayout):
            cut = ShardedTensor.of_samples(cut.shards, self.layout)
        cut.once(lambda: merged, "joined")
        return cut

    @property
    def _type_spec(self) -> ShardedTensorSpec:
        shards = self.trimmed().shards
        specs = [tf.TensorSpec.from_tensor(shard) for shard in shards]
        return ShardedTensorSpec(specs, self.layout)

    @property
    def dtype(self) -> tf.DType:
        """The dtype of every shard."""
        return self.shards[0].dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The merged shape."""
        dims = self.shards[0].shape.as_list()
        if isinstance(self.layout, SampleLayout):
            counts = self.counts or [shard.shape[0] for shard in self.shards]
            known = all(isinstance(count, int) for count in counts)
            dims[0] = sum(counts) if known else None
        else:
            dims[self.layout.axis] = self.layout.total
        return tf.TensorShape(dims)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def device(self) -> str:
        """The device on which the merged value would be."""
        return self.layout.owner

    def numpy(self) -> np.ndarray:
        """The merged value as an array (eager only)."""
        return np.asarray(self.joined().numpy())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # `numpy()` returns a fresh array, so a copy is never needed.
        return np.asarray(self.numpy(), dtype=dtype)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        merged = self.joined()
        return tf.cast(merged, dtype) if dtype else merged

    def __repr__(self) -> str:
        return (
            f"<ShardedTensor shape={tuple(self.shape)} "
            f"dtype={self.dtype.name} sizes={self.layout.sizes}>"
        )


def _current_graph() -> Any:
    """The graph being traced; None in eager mode, which has no graph."""
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()


class ShardedTensorSpec(tf.TypeSpec):
    """The type of a sharded tensor that enters or leaves a `tf.function`."""

    value_type = property(lambda self: ShardedTensor)

    def __init__(
        self, specs: Sequence[tf.TensorSpec], layout: AnyLayout
    ) -> None:
        self._specs = tuple(specs)
        self._layout = layout

    def _serialize(self) -> tuple[Any, ...]:
        by_samples = isinstance(self._layout, SampleLayout)
        return (self._specs, by_samples, dataclasses.astuple(self._layout))

    @classmethod
    def _deserialize(cls, serialization: tuple) -> ShardedTensorSpec:
        specs, by_samples, layout = serialization
        return cls(specs, (SampleLayout if by_samples else Layout)(*layout))

    @property
    def _component_specs(self) -> tuple[tf.TensorSpec, ...]:
        return self._specs

    def _to_components(self, value: ShardedTensor) -> tuple[tf.Tensor, ...]:
        return value.trimmed().shards

    def _from_components(self, components: Sequence[Any]) -> ShardedTensor:
        return ShardedTensor(components, self._layout)


def map_shards(
    fn: Callable[..., Any], layout: AnyLayout, *operands: Any
) -> ShardedTensor | Any:
    """Applies an elementwise `fn` shard by shard, on the shards' devices.

    Operands are sharded tensors, values of the merged shape (cut first), or
    values that broadcast along the axis that is cut. If an operand is none of
    these, `fn` is applied once, to merged operands.
    """
    pieces = []
    for operand in operands:
        piece = _pieces(operand, layout)
        if piece is None:
            break
        pieces.append(piece)
    if len(pieces) < len(operands):
        return fn(*(tf.convert_to_tensor(operand) for operand in operands))
    results = [
        on_device(fn, device)(*operands_there)
        for device, operands_there in zip(
            layout.devices, zip(*pieces, strict=True), strict=True
        )
    ]
    return ShardedTensor(results, layout)


def _pieces(operand: Any, layout: AnyLayout) -> Sequence[Any] | None:
    if isinstance(operand, keras.Variable):
        operand = operand.value
    if hasattr(operand, "sharded_value"):
        operand = operand.sharded_value()
    if isinstance(operand, ShardedTensor):
        same = operand.layout.matches(layout)
        return operand.trimmed().shards if same else None
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


@tf.experimental.dispatch_for_unary_elementwise_apis(ShardedTensor)
def _unary(fn: Callable[..., Any], x: ShardedTensor) -> Any:
    return map_shards(fn, x.layout, x)


@tf.experimental.dispatch_for_binary_elementwise_apis(
    ShardedTensor, ShardedTensor
)
def _binary(fn: Callable[..., Any], x: ShardedTensor, y: ShardedTensor) -> Any:
    return _with_numbers_typed(fn, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(ShardedTensor, _Other)
def _binary_left(fn: Callable[..., Any], x: ShardedTensor, y: _Other) -> Any:
    return _with_numbers_typed(fn, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(_Other, ShardedTensor)
def _binary_right(fn: Callable[..., Any], x: _Other, y: ShardedTensor) -> Any:
    return _with_numbers_typed(fn, x, y)


def _with_numbers_typed(fn: Callable[..., Any], x: Any, y: Any) -> Any:
    """Applies `fn`; Python numbers take the dtype of the sharded operand."""
    layout = next(v.layout for v in (x, y) if isinstance(v, ShardedTensor))
    dtype = next(v.dtype for v in (x, y) if isinstance(v, ShardedTensor))
    numbers = (bool, int, float)
    x, y = (
        tf.constant(v, dtype) if isinstance(v, numbers) else v for v in (x, y)
    )
    return map_shards(fn, layout, x, y)


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
        parts = map_shards(local, layout, input_tensor)
        if split_axis not in axes:
            # A negative number of the cut axis changes when a later axis goes.
            stays = layout.axis == 0 or all(a < split_axis for a in axes)
            if keepdims or stays:
                return parts
            return fn(tf.convert_to_tensor(input_tensor), axis, keepdims, name)
        return on_device(lambda *p: combine(list(p)), layout.owner)(
            *parts.shards
        )

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


def forward_operators(cls: type) -> None:
    """Gives a tensor-like class Python's operators, run by TensorFlow."""
    arithmetic = {
        "add": tf.add,
        "sub": tf.subtract,
        "mul": tf.multiply,
        "truediv": tf.truediv,
        "pow": tf.pow,
    }
    comparison = {
        "lt": tf.less,
        "le": tf.less_equal,
        "gt": tf.greater,
        "ge": tf.greater_equal,
    }
    for name, fn in (arithmetic | comparison).items():
        setattr(cls, f"__{name}__", lambda x, y, fn=fn: fn(x, y))
    for name, fn in arithmetic.items():
        setattr(cls, f"__r{name}__", lambda x, y, fn=fn: fn(y, x))
    for name, fn in {"neg": tf.negative, "abs": tf.abs}.items():
        setattr(cls, f"__{name}__", lambda x, fn=fn: fn(x))


forward_operators(ShardedTensor)
