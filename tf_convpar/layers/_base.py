"""What all parallel layers share: shards, their layout, and the star.

A parallel layer is the Keras layer it replaces with other storage and another
`call`. It inherits arguments, checks, shapes and serialization, and so that
files written by either load into the other, it carries the same class name:
Keras addresses a layer in a weights file by its class.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope

from tf_convpar.algorithms import check_algorithm
from tf_convpar.algorithms import convolve
from tf_convpar.layers._files import is_merged
from tf_convpar.layers._shards import resolve_shards
from tf_convpar.layers._shards import validate_shards
from tf_convpar.placement import Layout
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import broadcast
from tf_convpar.placement import concat_shards
from tf_convpar.placement import device_type
from tf_convpar.placement import on_device
from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import check_wire_dtype


class ConvParallel(keras.layers.Layer):
    """Mixed into a Keras convolution layer, in front of it."""

    def __init__(
        self,
        *args: Any,
        shards: Sequence[float] | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_wire_dtype(wire_dtype)
        if algorithm is not None:
            check_algorithm(algorithm)
        self.shards = validate_shards(shards, self.filters)
        self.wire_dtype = wire_dtype
        self.algorithm = algorithm
        # XLA would compile the layer for one device.
        self.supports_jit = False
        self._layout: Layout | None = None

    def build(self, input_shape: Any) -> None:
        """Makes the kernel and the bias, each shard on its device."""
        self._layout = self._make_layout(input_shape)
        super().build(input_shape)

    def _make_layout(self, input_shape: Any) -> Layout | None:
        """The layout of kernel and bias; None where nothing is to be cut."""
        strategy = tf.distribute.get_strategy()
        shards, wire = self.shards, self.wire_dtype
        if isinstance(strategy, ConvParallelStrategy):
            devices, owner = strategy.devices, strategy.chief_device
            shards = shards or validate_shards(
                strategy.shares(self, input_shape), self.filters
            )
            wire = wire or strategy.wire_dtype
        elif shards is None:
            return None
        else:
            devices = tuple(default_devices())
            owner = devices[0]
        self._wire = wire
        if shards and len(shards) > len(devices):
            warnings.warn(
                f"Layer '{self.name}' has {len(shards)} shards and this "
                f"program {len(devices)} devices: shards share devices. "
                "Results stay the same.",
                stacklevel=2,
            )
        counts = resolve_shards(shards, self.filters, len(devices))
        held = [
            (devices[i % len(devices)], n) for i, n in enumerate(counts) if n
        ]
        if {device for device, _ in held} == {owner}:
            return None
        names, sizes = zip(*held, strict=True)
        return Layout(owner=owner, devices=names, sizes=sizes)

    def add_weight(self, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of any Keras layer; kernel and bias are placed."""
        placed = kwargs.get("name") in ("kernel", "bias")
        if self._layout is None or not placed:
            return super().add_weight(shape, *args, **kwargs)
        with keras.name_scope(self.name, caller=self):
            variable = PlacedVariable(
                kwargs["initializer"],
                shape=shape,
                dtype=kwargs["dtype"],
                trainable=kwargs["trainable"],
                name=kwargs["name"],
                layout=self._layout,
            )
        if kwargs["regularizer"] is not None:
            variable.regularizer = _RegularizerOnShards(kwargs["regularizer"])
        if kwargs["constraint"] is not None:
            variable.constraint = _ConstraintOnShards(kwargs["constraint"])
        self._track_variable(variable)
        return variable

    def call(self, inputs: Any) -> Any:
        """The convolution, each shard's part on its device."""
        # Exporting, with LoRA, or with values from outside in a stateless call
        # it is the Keras layer.
        if is_merged() or self.lora_enabled or in_stateless_scope():
            return super().call(inputs)
        if not self.is_sharded:
            return self._call_whole(inputs)
        layout = self._kernel._value.layout
        wire = self._wire_dtype_for(inputs.dtype)
        copies = broadcast(inputs, layout.devices, layout.owner, wire.name)
        kernels = self._kernel._value.sharded_value().shards
        biases: Sequence[Any] = [None] * len(kernels)
        if self.use_bias:
            biases = self.bias._value.sharded_value().shards
        remember = _is_inference()
        maps = []
        first = 0
        for copy, kernel, bias, device, size in zip(
            copies, kernels, biases, layout.devices, layout.sizes, strict=True
        ):
            part = functools.partial(
                self._convolve_shard,
                filters=(first, self.filters),
                # TensorFlow's CPU convolutions take that format only.
                channels_last=device_type(device) == "CPU",
                dtype=inputs.dtype if device == layout.owner else wire,
                device=device,
                remember=remember,
            )
            operands = [copy, kernel] if bias is None else [copy, kernel, bias]
            maps.append(on_device(part, device, input_first=True)(*operands))
            first += size
        axis = -1 if self.data_format == "channels_last" else 1
        outputs = concat_shards(maps, layout.owner, axis, inputs.dtype)
        if self.activation is not None:
            return self.activation(outputs)
        return outputs

    def _call_whole(self, inputs: Any) -> Any:
        """On one device.

        The Keras layer, unless it has an algorithm, or is in a cluster: there
        the chief has threads enough to compute both gradients at once, and
        would.
        """
        device = self._whole_device()
        strategy = tf.distribute.get_strategy()
        direct = self.algorithm in (None, "direct")
        alone = getattr(strategy, "cluster", None) is None
        if (direct and alone) or device_type(device) != "CPU":
            return super().call(inputs)
        part = functools.partial(
            self._convolve_shard,
            filters=(0, self.filters),
            channels_last=True,
            dtype=tf.as_dtype(self.compute_dtype),
            device=device,
            remember=_is_inference(),
        )
        weights = [self.kernel, self.bias] if self.use_bias else [self.kernel]
        outputs = on_device(part, device, input_first=True)(
            *map(tf.convert_to_tensor, [inputs, *weights])
        )
        if self.activation is not None:
            return self.activation(outputs)
        return outputs

    def _whole_device(self) -> str:
        """Where the layer runs when it is not cut."""
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, ConvParallelStrategy):
            return str(strategy.chief_device)
        return default_devices()[0]

    def _wire_dtype_for(self, dtype: Any) -> tf.DType:
        """Never wider than what is computed: that would only cost bytes."""
        computed = tf.as_dtype(dtype)
        wire = tf.as_dtype(self._wire or computed)
        return wire if wire.size < computed.size else computed

    @property
    def is_sharded(self) -> bool:
        """Whether the kernel is in shards now."""
        return isinstance(self._kernel._value, ShardedVariable)

    def _convolve_shard(
        self,
        inputs: tf.Tensor,
        kernel: tf.Tensor,
        bias: tf.Tensor | None = None,
        *,
        filters: tuple[int, int],
        channels_last: bool,
        dtype: tf.DType,
        device: str,
        remember: bool,
    ) -> tf.Tensor:
        """One shard's feature maps; runs on its device, as does its gradient.

        Args:
            inputs: In the layer's compute dtype and data format.
            kernel: As stored; mixed precision converts it here.
            bias: Likewise.
            filters: The shard's first filter, and the layer's number of them.
            channels_last: Whether to compute in that format in any case.
            dtype: What to return, which is how it will travel.
            device: Where it runs.
            remember: Whether the kernel is likely to be the same next time.
        """
        channels_first = self.data_format == "channels_first"
        if channels_first and channels_last:
            inputs = _move_channels(inputs, 1, -1)
        # On a GPU cuDNN chooses.
        algorithm = self.algorithm if device_type(device) == "CPU" else None
        maps = convolve(
            inputs,
            tf.cast(kernel, inputs.dtype),
            strides=self.strides,
            padding=self.padding,
            dilation_rate=self.dilation_rate,
            groups=self.groups,
            filters=filters,
            channels_last=channels_last or not channels_first,
            algorithm=algorithm or "direct",
            bias=None if bias is None else tf.cast(bias, inputs.dtype),
            remember=remember,
            device=device,
        )
        if channels_first and channels_last:
            maps = _move_channels(maps, -1, 1)
        return tf.cast(maps, dtype)

    def get_config(self) -> dict[str, Any]:
        """The Keras layer's, with what this one adds."""
        return {
            **super().get_config(),
            "shards": self.shards,
            "wire_dtype": self.wire_dtype,
            "algorithm": self.algorithm,
        }

    def __repr__(self) -> str:
        return (
            f"<ConvParallel{self.rank}D name={self.name}, "
            f"shards={self._layout.sizes if self._layout else self.shards}, "
            f"built={self.built}>"
        )


def _is_inference() -> bool:
    """Whether Keras says that this is no training step: predict, evaluate."""
    context = global_state.get_global_attribute("current_call_ctx")
    return context is not None and context.get_value("training") is False


def _move_channels(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    axes = list(range(x.shape.rank))
    axes.insert(target % len(axes), axes.pop(source))
    return tf.transpose(x, axes)


class _RegularizerOnShards(keras.regularizers.Regularizer):
    """A regularizer that gets shards instead of a variable.

    Sums of squares and the like then run where the shards are; what mixes
    filters sees the merged kernel.
    """

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, x: Any) -> Any:
        return self.fn(_shards_of(x))


class _ConstraintOnShards(keras.constraints.Constraint):
    """Likewise a constraint."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, w: Any) -> Any:
        return self.fn(_shards_of(w))


def _shards_of(variable: Any) -> Any:
    value = variable._value
    if isinstance(value, ShardedVariable):
        return value.sharded_value()
    return variable
