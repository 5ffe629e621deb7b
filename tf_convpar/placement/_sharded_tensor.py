"""A tensor in shards that stay on their devices.

The gradient of a sharded kernel is such a tensor. What Keras then does with
gradients (loss scaling, clipping, accumulation) consists of elementwise ops
and sums, which run shard by shard (`_sharded_ops`). Any other op sees the
merged tensor, on the owner: correct by default, fast where it matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar._compat.tensorflow import BatchableTypeSpec
from tf_convpar._compat.tensorflow import CompositeTensor
from tf_convpar._compat.tensorflow import CompositeTensorGradient
from tf_convpar._compat.tensorflow import Tensor
from tf_convpar._compat.tensorflow import should_record_backprop
from tf_convpar.placement._cutting import merge
from tf_convpar.placement._cutting import split
from tf_convpar.placement._empty_shards import counted
from tf_convpar.placement._empty_shards import filled
from tf_convpar.placement._empty_shards import trimmed
from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._layout import SampleLayout


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
        self._shards = tuple(shards)
        # Of shards of samples, how many samples each has, where some may have
        # one that is made up (`_empty_shards`); None where none has.
        self.counts = counts
        # Typed `Any`: callers that use more than the devices know which kind
        # of layout it is.
        self.layout: Any = layout
        # Results of `once`, by graph and key.
        self._results: dict[Any, Any] = {}

    @property
    def shards(self) -> tuple[tf.Tensor, ...]:
        """The pieces, each on its device."""
        return self._shards

    @classmethod
    def laid_out(
        cls, shards: Sequence[tf.Tensor], layout: AnyLayout
    ) -> ShardedTensor:
        """Shards as they were computed, of samples or of anything else."""
        if isinstance(layout, SampleLayout):
            return cls.of_samples(shards, layout)
        return cls(shards, layout)

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
        """A sharded tensor of results, each on the device of its shard."""
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

    def once(
        self, make: Callable[[], Any], key: Any, tensors: Any = None
    ) -> Any:
        """Calls `make` once for each graph and key, and keeps its result.

        So layers that branch off from one tensor share results made of its
        shards, and messages sent for it. A result made while no tape recorded
        is of no use to a tape that does.

        Args:
            make: Makes a result.
            key: Key of the result.
            tensors: The tensors that it is made of; None for the shards.
        """
        key = _current_graph(), key
        if key in self._results:
            tensors = self.shards if tensors is None else tensors
            if _is_recorded(self._results[key]) or not _is_recorded(tensors):
                return self._results[key]
        self._results[key] = make()
        return self._results[key]

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
        return merged_shape(
            [x.shape for x in self.shards], self.layout, self.counts
        )

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

    def get_shape(self) -> tf.TensorShape:
        """The merged shape."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Raises ValueError unless the merged shape is such a shape."""
        self.shape.assert_is_compatible_with(shape)

    ref = experimental_ref = tf.Tensor.ref

    def __getattr__(self, name: str) -> Any:
        # What else a tensor has, the merged tensor has.
        if name.startswith("_") or not hasattr(tf.Tensor, name):
            raise AttributeError(f"A ShardedTensor has no attribute '{name}'.")
        return getattr(self.joined(), name)

    def numpy(self) -> np.ndarray:
        """The merged value as an array (eager only)."""
        return np.asarray(self.joined().numpy())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # The array is a fresh one, so a copy is never needed.
        return np.asarray(self.joined(), dtype=dtype)

    def __copy__(self) -> ShardedTensor:
        return self

    def __deepcopy__(self, memo: Any) -> ShardedTensor:
        return self

    def __reduce__(self) -> Any:
        # Devices are of this program alone.
        return tf.convert_to_tensor, (self.numpy(),)

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> tf.Tensor:
        merged = self.joined()
        return tf.cast(merged, dtype) if dtype else merged

    def __str__(self) -> str:
        return str(self.joined()) if tf.executing_eagerly() else repr(self)

    def __repr__(self) -> str:
        return (
            f"<ShardedTensor shape={tuple(self.shape)} "
            f"dtype={self.dtype.name} sizes={self.layout.sizes}>"
        )


def merged_shape(
    shapes: Sequence[tf.TensorShape],
    layout: AnyLayout,
    counts: Sequence[Any] | None = None,
) -> tf.TensorShape:
    """The shape of shards of these shapes, once they are joined.

    Args:
        shapes: Shapes of the shards.
        layout: Layout of the shards.
        counts: The samples of each, as a `ShardedTensor` has them.
    """
    dims = shapes[0].as_list()
    if isinstance(layout, SampleLayout):
        samples = counts or [shape[0] for shape in shapes]
        static = all(isinstance(n, int) for n in samples)
        dims[0] = sum(samples) if static else None
    else:
        dims[layout.axis] = layout.total
    return tf.TensorShape(dims)


def _is_recorded(tensors: Any) -> bool:
    """Whether a tape that records now has any of some tensors."""
    flat = tf.nest.flatten(tensors, expand_composites=True)
    return bool(should_record_backprop(flat))


def _current_graph() -> Any:
    """The graph being traced; None in eager mode, which has no graph."""
    if tf.executing_eagerly():
        return None
    return tf.compat.v1.get_default_graph()


class ShardedTensorSpec(BatchableTypeSpec):
    """The type of a sharded tensor that enters or leaves a `tf.function`.

    Code that stacks tensors, as jacobians do, or goes over the first axis of
    one, gets them merged.
    """

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

    @property
    def _merged(self) -> tf.TensorSpec:
        shape = merged_shape([spec.shape for spec in self._specs], self._layout)
        return tf.TensorSpec(shape, self._specs[0].dtype)

    def _batch(self, batch_size: int | None) -> tf.TensorSpec:
        return tf.TensorSpec(
            tf.TensorShape([batch_size]).concatenate(self._merged.shape),
            self._merged.dtype,
        )

    def _unbatch(self) -> tf.TensorSpec:
        return tf.TensorSpec(self._merged.shape[1:], self._merged.dtype)

    @property
    def _flat_tensor_specs(self) -> list[tf.TensorSpec]:
        return [self._merged]

    def _to_tensor_list(self, value: ShardedTensor) -> list[tf.Tensor]:
        return [value.joined()]

    _to_batched_tensor_list = _to_tensor_list

    def _from_compatible_tensor_list(
        self, tensor_list: Sequence[tf.Tensor]
    ) -> ShardedTensor:
        (merged,) = tensor_list
        return ShardedTensor(split(merged, self._layout), self._layout)
