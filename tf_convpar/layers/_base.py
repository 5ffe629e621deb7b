"""The base class of parallel layers: how a call runs on devices.

A parallel layer is the Keras layer that it replaces, with other storage and
another `call`. It inherits arguments, checks, shapes and serialization. It also
has the same class name, so that files written by either load into the other:
Keras addresses a layer in a weights file by its class.

Kinds of layers differ in how weights lie (`InShards`) and in three members:
where the input is needed (`_wanted`), what the devices compute when each has
some of the filters (`_maps`), and what when each has all (`_stages`). Without a
cluster there is one device (`OneDevice`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import is_adapted
from tf_convpar._compat.keras import stored
from tf_convpar.layers._activations import is_elementwise_activation
from tf_convpar.layers._activations import is_per_sample_activation
from tf_convpar.layers._channel_scaling import is_inference
from tf_convpar.layers._channel_scaling import leave_note
from tf_convpar.layers._files import is_merged
from tf_convpar.layers._one_device import OneDevice
from tf_convpar.layers._one_device import Stage
from tf_convpar.layers._one_device import takes_shards
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Move
from tf_convpar.placement import Needed
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import arranged
from tf_convpar.placement import copies_of
from tf_convpar.placement import in_shards
from tf_convpar.placement import on_device


class ConvParallel(OneDevice):
    """A mixin for a Keras convolution layer, before it among the bases."""

    def _wanted(self) -> AnyLayout | tuple[str, ...]:
        """The place where the input is needed: a layout, or device names.

        All of it is, unless a kind of layer says otherwise.
        """
        layout: Any = self._layout
        devices: tuple[str, ...] = layout.devices
        return devices

    def _maps(self, inputs: Any) -> ShardedTensor:
        """Computes on each device the feature maps of its own filters."""
        ((compute, names),) = self._stages()
        return self._on_shards(compute, self._arranged(inputs), names)

    def join_region(
        self,
        input_shape: Any,
        incoming: AnyLayout | None,
        recomputable: bool = False,
    ) -> AnyLayout | None:
        """Lets feature maps stay in shards; to be called before `build`.

        Args:
            input_shape: Shape of the layer's input.
            incoming: Layout of its input; None if that is on the chief.
            recomputable: Whether one other layer alone uses the maps, and may
                be computed with them.

        Returns:
            Layout of its feature maps; None if they will be on the chief.
        """
        self._lay_out(input_shape, incoming)
        self._recomputable = recomputable
        return self.maps_layout(input_shape)

    def samples_layout(self, input_shape: Any) -> SampleLayout | None:
        """The layout of the samples; None if the layer is not split by them.

        It may be called before `build`.
        """
        self._lay_out(input_shape)
        return self._samples

    def maps_layout(self, input_shape: Any) -> AnyLayout | None:
        """The layout of feature maps that stay in shards, else None."""
        maps: AnyLayout | None = self._samples
        if maps is None and self._layout is not None:
            maps = self._layout_of_maps(self._layout, input_shape)
        self._in_region = maps is not None and self._activates_shards()
        return maps if self._in_region else None

    def call(self, inputs: Any) -> Any:
        """Computes the convolution, each shard's part on its device."""
        # The plain Keras layer runs in an export, with LoRA or DoRA, and in a
        # stateless call, which brings values of its own for the variables.
        if is_merged() or is_adapted(self) or in_stateless_scope():
            return super().call(tf.convert_to_tensor(inputs))
        if not self.is_spread:
            return self._call_on_chief(tf.convert_to_tensor(inputs))
        if self._samples is not None:
            maps = self._maps_of_samples(inputs, self._samples)
        else:
            maps = self._maps(inputs)
        if not self._activates_shards():
            return self.activation(maps.joined())
        maps = maps.with_shards(
            [
                self._activated_on(device, part)
                for device, part in zip(
                    maps.layout.devices, maps.shards, strict=True
                )
            ]
        )
        return maps if self._in_region and takes_shards() else maps.joined()

    def rematerialized_call(
        self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Keeps shards in a `keras.RematScope`, which computes maps again.

        TensorFlow's function for it takes and returns tensors, all of one
        device. Of shards each device has its part only.
        """
        if self.is_spread and takes_shards():
            return layer_call
        return super().rematerialized_call(layer_call, *args, **kwargs)

    def _activates_shards(self) -> bool:
        """Whether the activation may run where the shards are."""
        if self._samples is not None:
            return is_per_sample_activation(self.activation)
        return is_elementwise_activation(self.activation)

    def moves(
        self, input_shape: Sequence[int], input_place: Place, before: bool
    ) -> list[Move]:
        """The tensors that a call sends: the input, and kernels if they travel.

        Args:
            input_shape: Shape of the input, with the batch.
            input_place: Place where the input is.
            before: Whether anything before the layer learns, so that it needs
                the gradient of the input.

        Returns:
            A move for each tensor that is sent.
        """
        layout: Any = self._samples or self._layout
        width = self._wire_dtype_for(self.compute_dtype).size
        shape = tuple(input_shape)
        if self._samples is None:
            wanted = self._wanted()
            return [
                Move(shape, input_place, wanted, layout.owner, width, before)
            ]
        kernels = [
            getattr(self, name) for _, names in self._stages() for name in names
        ]
        return [
            Move(
                shape, input_place, self._samples, layout.owner, width, before
            ),
            *(
                Move(
                    tuple(kernel.shape),
                    self._layout_of(kernel.name, kernel.shape),
                    layout.devices,
                    layout.owner,
                    width,
                    kernel.trainable,
                    packed=not is_adapted(self),
                )
                for kernel in kernels
            ),
        ]

    def needed(self) -> list[Needed]:
        """The weights that are sent, if the layer is split by samples."""
        layout = self._samples
        # With LoRA or DoRA the kernel is made of several weights, by Keras.
        if layout is None or is_adapted(self):
            return []
        wire = self._wire_dtype_for(self.compute_dtype).name
        return [
            Needed(getattr(self, name), layout.devices, layout.owner, wire)
            for _, names in self._stages()
            for name in names
        ]

    def _arranged(self, inputs: Any) -> list[tf.Tensor]:
        """Sends each device its part of the input, as `moves` says."""
        layout: Any = self._layout
        wire = self._wire_dtype_for(inputs.dtype).name
        return arranged(inputs, self._wanted(), layout.owner, wire)

    def _on_shards(
        self,
        compute: Callable[..., tf.Tensor],
        inputs: Sequence[tf.Tensor],
        names: Sequence[str],
    ) -> ShardedTensor:
        """Runs a function on each device, with its input and its weights.

        Args:
            compute: Function that takes an input and a shard of each weight in
                the input's dtype. As keywords it takes whether the input is
                `channels_last`, the name of the `device`, and the number of the
                `first` filter or channel of the shard.
            inputs: Input tensors, one for each device.
            names: Names of the weights.

        Returns:
            The feature maps, in shards of channels.
        """
        weights = [stored(getattr(self, n)).sharded_value() for n in names]
        layout = weights[0].layout
        shards = [weight.shards for weight in weights]
        firsts = list(itertools.accumulate(layout.sizes, initial=0))
        maps = self._on_devices(
            self._with_activation(compute),
            layout.devices,
            inputs,
            shards,
            firsts,
        )
        if len(self._stages()) == 1:
            self._leave_notes(maps, layout.devices, inputs, shards, firsts)
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
        """Computes all feature maps, on each device those of its samples.

        Kernels travel: each device gathers all of them. Their gradients return
        to where the kernels are stored, and are added there.
        """
        wire = self._wire_dtype_for(inputs.dtype).name
        layout = dataclasses.replace(layout, wire=wire)
        images = in_shards(inputs, layout)
        devices, firsts = layout.devices, [0] * len(layout.devices)
        maps: Sequence[tf.Tensor] = images.shards
        weights = []
        for compute, names in self._stages_on_shards():
            copies = [
                copies_of(getattr(self, name), devices, layout.owner, wire)
                for name in names
            ]
            maps = self._on_devices(compute, devices, maps, copies, firsts)
            weights += copies
        self._leave_notes(maps, devices, images.shards, weights, firsts)
        return images.with_shards(maps, layout)

    def _leave_notes(
        self,
        maps: Sequence[tf.Tensor],
        devices: Sequence[str],
        inputs: Sequence[tf.Tensor],
        weights: Sequence[Sequence[tf.Tensor]],
        firsts: Sequence[int],
    ) -> None:
        """Leaves notes on maps of how to recompute them scaled.

        Args:
            maps: The feature maps of each device.
            devices: Names of the devices.
            inputs: The input of each, for all stages.
            weights: For each weight of all stages, its tensor on each device.
            firsts: The first filter of each device.
        """
        last = self.data_format == "channels_last"
        linear = self.activation in (None, keras.activations.linear)
        notes = self._recomputable and takes_shards() and is_inference()
        if not (notes and last and linear):
            return
        for device, y, x, first, *operands in zip(
            devices, maps, inputs, firsts, *weights, strict=False
        ):
            count = len(operands) - bool(self.use_bias)
            kernels, bias = operands[:count], operands[count:]
            shape = self._factors_shape(kernels[-1])
            if shape is None:
                return
            source = self._source(x, device, kernels[-1])
            run = functools.partial(self._in_stages, device, first_filter=first)
            leave_note(y, run, source, kernels, bias, shape)

    def _stages_on_shards(self) -> list[Stage]:
        """The stages, of which the last may have the activation in its pass."""
        *first, (last, names) = self._stages()
        return [*first, (self._with_activation(last), names)]

    def _with_activation(
        self, compute: Callable[..., tf.Tensor]
    ) -> Callable[..., tf.Tensor]:
        """The last stage with the activation in its pass, where it has one."""

        def run(*operands: tf.Tensor, device: str, **where: Any) -> tf.Tensor:
            activation = self._fused_activation(device)
            if activation != "linear":
                where["epilogue"] = ops.Epilogue(activation=activation)
            return compute(*operands, device=device, **where)

        return run

    def _activated_on(self, device: str, maps: tf.Tensor) -> tf.Tensor:
        """Feature maps of the last stage with the layer's activation."""
        linear = self.activation in (None, keras.activations.linear)
        if linear or self._fused_activation(device) != "linear":
            return maps
        return on_device(self.activation, device)(maps)

    def _on_devices(
        self,
        compute: Callable[..., tf.Tensor],
        devices: Sequence[str],
        inputs: Sequence[tf.Tensor],
        weights: Sequence[Sequence[tf.Tensor]],
        firsts: Iterable[int],
    ) -> list[tf.Tensor]:
        """Runs a function on each device, with its input and its weights.

        Args:
            compute: Function as for `_on_shards`.
            devices: Names of the devices.
            inputs: Input tensors, one for each device.
            weights: For each weight, its tensor on each device.
            firsts: The first filter or channel of each device.
        """
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
