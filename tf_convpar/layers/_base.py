"""What all parallel layers share: the way of a call.

A parallel layer is the Keras layer it replaces with other storage and another
`call`. It inherits arguments, checks, shapes and serialization, and so that
files written by either load into the other, it carries the same class name:
Keras addresses a layer in a weights file by its class.

What kinds of layers differ in, beside how weights lie (`InShards`), is stated
by two members: what happens on the devices when each has some of the filters
(`_maps`), and what when each has all of them (`_all_filters`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from tf_convpar.layers._activations import is_elementwise_activation
from tf_convpar.layers._activations import is_per_sample_activation
from tf_convpar.layers._files import is_merged
from tf_convpar.layers._stored import InShards
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import apart
from tf_convpar.placement import arranged
from tf_convpar.placement import device_type
from tf_convpar.placement import everywhere_in_turn
from tf_convpar.placement import on_device
from tf_convpar.placement import value_of

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


class ConvParallel(InShards):
    """Mixed into a Keras convolution layer, in front of it."""

    def _wanted(self) -> AnyLayout | tuple[str, ...]:
        """Where the input is needed: all of it on each device, or parts."""
        raise NotImplementedError

    def _maps(self, inputs: Any) -> ShardedTensor:
        """Feature maps on the devices, of each device's own filters."""
        raise NotImplementedError

    def _all_filters(self) -> tuple[Callable[..., tf.Tensor], list[str]]:
        """What makes all feature maps of some samples, as for `_on_shards`.

        And the names of the weights that it takes.
        """
        raise NotImplementedError

    def join_region(
        self, input_shape: Any, incoming: AnyLayout | None
    ) -> AnyLayout | None:
        """From now on feature maps stay in shards; called before `build`.

        Args:
            input_shape: Of the layer.
            incoming: How its input lies in shards; None if on the chief.

        Returns:
            How its feature maps will; None if they will be on the chief.
        """
        self._lay_out(input_shape, incoming)
        return self.maps_lie(input_shape)

    def samples_lie(self, input_shape: Any) -> SampleLayout | None:
        """How samples do; None unless it is split by them. Before `build`."""
        self._lay_out(input_shape)
        return self._samples

    def maps_lie(self, input_shape: Any) -> AnyLayout | None:
        """How feature maps lie that stay in shards; None: on the chief."""
        maps: AnyLayout | None = self._samples
        if maps is None and self._layout is not None:
            maps = self._layout_of_maps(self._layout, input_shape)
        self._in_region = maps is not None and self._activates_shards()
        return maps if self._in_region else None

    def call(self, inputs: Any) -> Any:
        """The convolution, each shard's part on its device."""
        # Exporting, with LoRA, or with values from outside in a stateless call
        # it is the Keras layer.
        lora = getattr(self, "lora_enabled", False)
        if is_merged() or lora or in_stateless_scope():
            return super().call(tf.convert_to_tensor(inputs))
        if not self.is_spread:
            return self._call_whole(tf.convert_to_tensor(inputs))
        if self._samples is not None:
            maps = self._maps_of_samples(inputs, self._samples)
        else:
            maps = self._maps(inputs)
        if not self._activates_shards():
            return self.activation(maps.joined())
        if self.activation is not None:
            layout = maps.layout
            maps = ShardedTensor(
                [
                    on_device(self.activation, device)(part)
                    for part, device in zip(
                        maps.shards, layout.devices, strict=True
                    )
                ],
                layout,
            )
        return maps if self._in_region and takes_shards() else maps.joined()

    def _activates_shards(self) -> bool:
        """Whether the activation may run where the shards are."""
        if self._samples is not None:
            return is_per_sample_activation(self.activation)
        return is_elementwise_activation(self.activation)

    def moves(
        self, input_shape: Sequence[int], lies: Place, before: bool
    ) -> list[Move]:
        """What a call sends: the input, and kernels where they travel.

        Args:
            input_shape: With the batch.
            lies: Where the input is.
            before: Whether anything before the layer learns.
        """
        layout: Any = self._samples or self._layout
        width = self._wire_dtype_for(self.compute_dtype).size
        shape = tuple(input_shape)
        if self._samples is None:
            wanted = self._wanted()
            return [Move(shape, lies, wanted, layout.owner, width, before)]
        kernels = [getattr(self, name) for name in self._all_filters()[1]]
        return [
            Move(shape, lies, self._samples, layout.owner, width, before),
            *(
                Move(
                    tuple(kernel.shape),
                    self._layout_of(kernel.name, kernel.shape),
                    layout.devices,
                    layout.owner,
                    width,
                    kernel.trainable,
                )
                for kernel in kernels
            ),
        ]

    def _arranged(self, inputs: Any) -> list[tf.Tensor]:
        """The input, as `moves` says."""
        layout: Any = self._layout
        wire = self._wire_dtype_for(inputs.dtype).name
        return arranged(inputs, self._wanted(), layout.owner, wire)

    def _call_whole(self, inputs: tf.Tensor) -> Any:
        """On one device."""
        return super().call(inputs)

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
        maps = self._on_devices(
            compute,
            layout.devices,
            inputs,
            [weight.shards for weight in weights],
            itertools.accumulate(layout.sizes, initial=0),
        )
        axis = self._channel_axis()
        sizes = tuple(y.shape[axis] for y in maps)
        wire = self._wire_dtype_for(maps[0].dtype).name
        return ShardedTensor(
            maps,
            dataclasses.replace(layout, axis=axis, sizes=sizes, wire=wire),
        )

    def _maps_of_samples(
        self, inputs: Any, layout: SampleLayout
    ) -> ShardedTensor:
        """All feature maps, on each device those of its samples.

        Kernels travel: each device gathers all of them, and their gradients
        return to where they are stored, and are added there.
        """
        wire = self._wire_dtype_for(inputs.dtype).name
        layout = dataclasses.replace(layout, wire=wire)
        compute, names = self._all_filters()
        copies = [
            everywhere_in_turn(
                value_of(getattr(self, name)),
                layout.devices,
                layout.owner,
                wire,
            )
            for name in names
        ]
        own = apart(inputs, layout).shards
        maps = self._on_devices(
            compute, layout.devices, own, copies, itertools.repeat(0)
        )
        return ShardedTensor(maps, layout)

    def _on_devices(
        self,
        compute: Callable[..., tf.Tensor],
        devices: Sequence[str],
        inputs: Sequence[tf.Tensor],
        weights: Sequence[Sequence[tf.Tensor]],
        firsts: Iterable[int],
    ) -> list[tf.Tensor]:
        """Runs something on each device, with what it has of each operand."""
        maps = []
        for device, first, *operands in zip(
            devices, firsts, inputs, *weights, strict=False
        ):
            part = functools.partial(
                self._run_shard, compute, device=device, first=first
            )
            run = on_device(part, device, input_first=True)
            maps.append(run(*operands))
        return maps

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
