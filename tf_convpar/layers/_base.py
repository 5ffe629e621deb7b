"""What all parallel layers share: weights in shards, and the way of a call.

A parallel layer is the Keras layer it replaces with other storage and another
`call`. It inherits arguments, checks, shapes and serialization, and so that
files written by either load into the other, it carries the same class name:
Keras addresses a layer in a weights file by its class.

What kinds of layers differ in is stated by three members: which axis of each
weight is cut (`_cut_axes`), how many channels there are to give out
(`_given_out`), and what happens on the devices (`_maps`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from tf_convpar.algorithms import check_algorithm
from tf_convpar.layers._activations import is_elementwise_activation
from tf_convpar.layers._files import is_merged
from tf_convpar.layers._shards import resolve_shards
from tf_convpar.layers._shards import validate_shards
from tf_convpar.placement import Layout
from tf_convpar.placement import PlacedVariable
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import device_type
from tf_convpar.placement import on_device
from tf_convpar.placement import place
from tf_convpar.strategy.devices import default_devices
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import check_wire_dtype

# Whether what a layer returns goes to one that takes shards.
_to_shards: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "to_shards", default=False
)


@contextlib.contextmanager
def within_region() -> Iterator[None]:
    """Layers called within it may return shards; anywhere else tensors."""
    token = _to_shards.set(True)
    try:
        yield
    finally:
        _to_shards.reset(token)


def takes_shards() -> bool:
    """Whether a layer is called from within a region."""
    return _to_shards.get()


class ConvParallel(keras.layers.Layer):
    """Mixed into a Keras convolution layer, in front of it."""

    # Of each weight that is cut, by its name.
    _cut_axes: Mapping[str, int] = {"kernel": -1, "bias": -1}

    def __init__(
        self,
        *args: Any,
        shards: Sequence[float] | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.spread(shards, wire_dtype, algorithm)

    def spread(
        self,
        shards: Sequence[float] | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
    ) -> None:
        """Sets what a parallel layer has beside its Keras twin."""
        check_wire_dtype(wire_dtype)
        if algorithm is not None:
            check_algorithm(algorithm)
        self.shards = validate_shards(shards)
        self.wire_dtype = wire_dtype
        self.algorithm = algorithm
        # XLA would compile the layer for one device.
        self.supports_jit = False
        # In a region feature maps stay in shards for the next layer.
        self._in_region = False
        self._layout: Layout | None = None

    def _given_out(self, input_shape: Sequence[int | None]) -> int:
        """How many channels `shards` refer to."""
        return int(self.filters)

    def _maps(self, inputs: Any) -> ShardedTensor:
        """Feature maps on the devices, without activation."""
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        """Makes the weights, each shard on its device."""
        self._lay_out(input_shape)
        super().build(input_shape)

    def join_region(
        self, input_shape: Any, incoming: Layout | None
    ) -> Layout | None:
        """From now on feature maps stay in shards; called before `build`.

        Args:
            input_shape: Of the layer.
            incoming: How its input lies in shards; None if on the chief.

        Returns:
            How its feature maps will; None if they will be on the chief.
        """
        self._layout = self._layout_in_region(input_shape, incoming)
        if self._layout is None or not is_elementwise_activation(
            self.activation
        ):
            return None
        self._in_region = True
        return self._layout_of_maps(self._layout, input_shape)

    def place(self, input_shape: Any) -> None:
        """Cuts the weights of a layer that was built whole."""
        self._lay_out(input_shape)
        for variable in (
            self._trainable_variables + self._non_trainable_variables
        ):
            layout = self._layout_of(variable.name, variable.shape)
            if layout is not None:
                place(variable, layout)

    def _lay_out(self, input_shape: Any) -> None:
        """Settles how weights lie, unless a region has."""
        if self._layout is None:
            self._layout = self._make_layout(input_shape)

    def _layout_in_region(
        self, input_shape: Any, incoming: Layout | None
    ) -> Layout | None:
        return self._make_layout(input_shape)

    def _layout_of_maps(self, layout: Layout, input_shape: Any) -> Layout:
        return dataclasses.replace(layout, axis=self._channel_axis())

    def _make_layout(self, input_shape: Any) -> Layout | None:
        """The layout of what is given out; None where nothing is to be cut."""
        strategy = tf.distribute.get_strategy()
        shards = self.shards
        total = self._given_out(input_shape)
        if isinstance(strategy, ConvParallelStrategy):
            devices, owner = strategy.devices, strategy.chief_device
            shards = shards or validate_shards(
                strategy.shares(self, input_shape)
            )
        elif shards is None:
            return None
        else:
            devices = tuple(default_devices())
            owner = devices[0]
        if shards and len(shards) > len(devices):
            warnings.warn(
                f"Layer '{self.name}' has {len(shards)} shards and this "
                f"program {len(devices)} devices: shards share devices. "
                "Results stay the same.",
                stacklevel=2,
            )
        counts = resolve_shards(shards, total, len(devices))
        held = [
            (devices[i % len(devices)], n) for i, n in enumerate(counts) if n
        ]
        if {device for device, _ in held} == {owner}:
            return None
        names, sizes = zip(*held, strict=True)
        return Layout(
            owner=owner, devices=names, sizes=sizes, wire=self._wire()
        )

    def _wire(self) -> str | None:
        """The dtype to travel in: the layer's own, else the strategy's."""
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, ConvParallelStrategy):
            return self.wire_dtype or strategy.wire_dtype
        return self.wire_dtype

    def _layout_of(self, name: str | None, shape: Any) -> Layout | None:
        """The layout of a weight; None where it is not cut."""
        axis = self._cut_axes.get(name or "")
        if self._layout is None or axis is None:
            return None
        # A bias may have several numbers for each channel given out.
        times = shape[axis] // self._layout.total
        return dataclasses.replace(
            self._layout,
            axis=axis,
            sizes=tuple(times * n for n in self._layout.sizes),
            wire=None,
        )

    def add_weight(self, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of any Keras layer; what is cut is placed."""
        layout = self._layout_of(kwargs.get("name"), shape)
        if layout is None:
            return super().add_weight(shape, *args, **kwargs)
        with keras.name_scope(self.name, caller=self):
            variable = PlacedVariable(
                kwargs["initializer"],
                shape=shape,
                dtype=kwargs["dtype"],
                trainable=kwargs["trainable"],
                name=kwargs["name"],
                layout=layout,
            )
        variable.regularizer = kwargs["regularizer"]
        variable.constraint = kwargs["constraint"]
        self._track_variable(variable)
        return variable

    def call(self, inputs: Any) -> Any:
        """The convolution, each shard's part on its device."""
        # Exporting, with LoRA, or with values from outside in a stateless call
        # it is the Keras layer.
        lora = getattr(self, "lora_enabled", False)
        if is_merged() or lora or in_stateless_scope():
            return super().call(tf.convert_to_tensor(inputs))
        if not self.is_sharded:
            return self._call_whole(tf.convert_to_tensor(inputs))
        maps = self._maps(inputs)
        if not (self._in_region and takes_shards()):
            outputs = maps.joined()
            return self.activation(outputs) if self.activation else outputs
        if self.activation is None:
            return maps
        return ShardedTensor(
            [
                on_device(self.activation, device)(part)
                for part, device in zip(
                    maps.shards, maps.layout.devices, strict=True
                )
            ],
            maps.layout,
        )

    def _call_whole(self, inputs: tf.Tensor) -> Any:
        """On one device."""
        return super().call(inputs)

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are in shards now."""
        return any(isinstance(v._value, ShardedVariable) for v in self.weights)

    def _wire_dtype_for(self, dtype: Any) -> tf.DType:
        """Never wider than what is computed: that would only cost bytes."""
        computed = tf.as_dtype(dtype)
        wire = tf.as_dtype((self._layout and self._layout.wire) or computed)
        return wire if wire.size < computed.size else computed

    def _channel_axis(self) -> int:
        """Of feature maps, negative as layouts have it."""
        if self.data_format == "channels_last":
            return -1
        return -1 - int(self.rank)

    def _with_bias(self, kernel: str = "kernel") -> list[str]:
        """Names of the weights that make feature maps."""
        return [kernel, "bias"] if self.use_bias else [kernel]

    def _algorithm_on(self, device: str) -> str:
        """The layer's; on a GPU cuDNN chooses."""
        on_cpu = device_type(device) == "CPU"
        return str(self.algorithm) if self.algorithm and on_cpu else "direct"

    def _on_shards(
        self,
        compute: Callable[..., tf.Tensor],
        inputs: Sequence[tf.Tensor],
        names: Sequence[str],
    ) -> ShardedTensor:
        """Runs something on each device, with its input and its weights.

        Args:
            compute: Takes an input and a shard of each weight in the input's
                dtype, and as keywords whether these are `channels_last`, the
                `device`, and the `first` channel of the shard.
            inputs: One for each device.
            names: Of the weights.
        """
        weights = [getattr(self, name)._value.sharded_value() for name in names]
        layout = weights[0].layout
        maps = []
        first = 0
        for i, (x, device) in enumerate(
            zip(inputs, layout.devices, strict=True)
        ):
            part = functools.partial(
                self._run_shard, compute, device=device, first=first
            )
            shards = [weight.shards[i] for weight in weights]
            run = on_device(part, device, input_first=True)
            maps.append(run(x, *shards))
            first += layout.sizes[i]
        axis = self._channel_axis()
        sizes = tuple(y.shape[axis] for y in maps)
        wire = self._wire_dtype_for(maps[0].dtype).name
        return ShardedTensor(
            maps,
            dataclasses.replace(layout, axis=axis, sizes=sizes, wire=wire),
        )

    def _run_shard(
        self,
        compute: Callable[..., tf.Tensor],
        x: tf.Tensor,
        *weights: tf.Tensor,
        device: str,
        first: int,
    ) -> tf.Tensor:
        """One shard's part, on its device, as is its gradient."""
        channels_first = self.data_format == "channels_first"
        # TensorFlow's CPU convolutions take channels last only.
        moves = channels_first and device_type(device) == "CPU"
        if moves:
            x = move_channels(x, 1, -1)
        # As stored; mixed precision converts them here.
        weights = tuple(tf.cast(weight, x.dtype) for weight in weights)
        y = compute(
            x,
            *weights,
            channels_last=moves or not channels_first,
            device=device,
            first=first,
        )
        return move_channels(y, -1, 1) if moves else y

    def get_config(self) -> dict[str, Any]:
        """The Keras layer's, with what this one adds."""
        return {
            **super().get_config(),
            "shards": self.shards,
            "wire_dtype": self.wire_dtype,
            "algorithm": self.algorithm,
        }

    def __repr__(self) -> str:
        kind = type(self).__name__.replace("Conv", "ConvParallel")
        return (
            f"<{kind} name={self.name}, "
            f"shards={self._layout.sizes if self._layout else self.shards}, "
            f"built={self.built}>"
        )


def data_format(channels_last: bool) -> str:
    """As Keras calls it."""
    return "channels_last" if channels_last else "channels_first"


def add_bias(y: tf.Tensor, bias: Sequence[tf.Tensor], last: bool) -> tf.Tensor:
    """The bias if there is one, along the channels."""
    if not bias:
        return y
    if last:
        return y + bias[0]
    return y + tf.reshape(bias[0], [-1] + [1] * (y.shape.rank - 2))


def move_channels(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    """With the channel axis elsewhere."""
    axes = list(range(x.shape.rank))
    axes.insert(target % len(axes), axes.pop(source))
    return tf.transpose(x, axes)
