"""The base class of parallel layers: how a call runs on devices.

A parallel layer is the Keras layer that it replaces, with other storage and
another `call`. It inherits arguments, checks, shapes and serialization. It also
has the same class name, so that files written by either load into the other:
Keras addresses a layer in a weights file by its class.

Kinds of layers differ in how weights lie (`InShards`), and in the convolutions
that they are made of (`Stage`). Without a cluster one device computes them
(`call_on`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import is_adapted
from tf_convpar._compat.keras import stored
from tf_convpar.layers._activations import is_elementwise_activation
from tf_convpar.layers._activations import is_per_sample_activation
from tf_convpar.layers._channel_scaling import is_inference
from tf_convpar.layers._channels import channel_axis
from tf_convpar.layers._chief import chief
from tf_convpar.layers._files import is_merged
from tf_convpar.layers._one_device import call_on
from tf_convpar.layers._one_device import leave_notes
from tf_convpar.layers._sharded_weights import InShards
from tf_convpar.layers._stage import Stage
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Move
from tf_convpar.placement import Needed
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import arranged
from tf_convpar.placement import copies_of
from tf_convpar.placement import device_type
from tf_convpar.placement import in_shards

# Whether a layer is called where its result may be shards.
_to_shards: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "to_shards", default=False
)


@contextlib.contextmanager
def within_region() -> Iterator[None]:
    """A context in which layers may return shards; elsewhere, tensors."""
    token = _to_shards.set(True)
    try:
        yield
    finally:
        _to_shards.reset(token)


def takes_shards() -> bool:
    """Whether a layer is called from within a region."""
    return _to_shards.get()


class ConvParallel(InShards):
    """A mixin for a Keras convolution layer, before it among the bases."""

    # The value that was assigned to `supports_jit`; Keras assigns True.
    _asked_jit = True

    def stages(self) -> list[Stage]:
        """The convolutions of the layer, each of the result of the one before.

        The last has the layer's activation.
        """
        raise NotImplementedError

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
        stages = self.stages()
        if not self.is_spread:
            device, _ = chief()
            inputs = tf.convert_to_tensor(inputs)
            if stages[-1].is_of_keras(device):
                return super().call(inputs)
            return call_on(device, self, stages, inputs)
        if self._samples is not None:
            maps = self._maps_of_samples(inputs, stages, self._samples)
        else:
            maps = self._maps_of_filters(inputs, stages)
        if not self._activates_shards():
            return self.activation(maps.joined())
        maps = maps.with_shards(
            [
                stages[-1].activated(device, part)
                for device, part in zip(
                    maps.layout.devices, maps.shards, strict=True
                )
            ]
        )
        return maps if self._in_region and takes_shards() else maps.joined()

    def _maps_of_filters(
        self, inputs: Any, stages: Sequence[Stage]
    ) -> ShardedTensor:
        """Computes feature maps, on each device those of its own filters.

        Devices are sent their part of what each stage needs.
        """
        layout: Any = self._layout
        maps = inputs
        for stage in stages:
            wire = layout.wire_dtype(maps.dtype).name
            parts = arranged(maps, stage.wanted(), layout.owner, wire)
            maps = self._on_shards(stage, parts, wire, stages)
        return maps

    def _on_shards(
        self,
        stage: Stage,
        inputs: Sequence[tf.Tensor],
        wire: str,
        stages: Sequence[Stage],
    ) -> ShardedTensor:
        """Runs a stage on each device, with its input and its weights.

        Args:
            stage: The stage.
            inputs: Input tensors, one for each device.
            wire: The dtype in which feature maps travel.
            stages: All stages of the layer.

        Returns:
            The feature maps, in shards of channels.
        """
        weights = [
            stored(getattr(self, n)).sharded_value() for n in stage.names
        ]
        layout = weights[0].layout
        shards = [weight.shards for weight in weights]
        firsts = list(itertools.accumulate(layout.sizes, initial=0))[:-1]
        maps = _on_devices(
            stage, layout.devices, inputs, shards, firsts, stage is stages[-1]
        )
        if len(stages) == 1:
            self._leave_notes(
                stages, maps, layout.devices, inputs, shards, firsts
            )
        axis = channel_axis(self)
        sizes = tuple(y.shape[axis] for y in maps)
        return ShardedTensor(
            maps,
            dataclasses.replace(layout, axis=axis, sizes=sizes, wire=wire),
        )

    def _maps_of_samples(
        self, inputs: Any, stages: Sequence[Stage], layout: SampleLayout
    ) -> ShardedTensor:
        """Computes all feature maps, on each device those of its samples.

        Kernels travel: each device gathers all of them. Their gradients return
        to where the kernels are stored, and are added there.
        """
        wire = layout.wire_dtype(inputs.dtype).name
        layout = dataclasses.replace(layout, wire=wire)
        images = in_shards(inputs, layout)
        devices, firsts = layout.devices, [0] * len(layout.devices)
        maps: Sequence[tf.Tensor] = images.shards
        weights = []
        for stage in stages:
            copies = [
                copies_of(getattr(self, name), devices, layout.owner, wire)
                for name in stage.names
            ]
            maps = _on_devices(
                stage, devices, maps, copies, firsts, stage is stages[-1]
            )
            weights += copies
        self._leave_notes(stages, maps, devices, images.shards, weights, firsts)
        return images.with_shards(maps, layout)

    def _leave_notes(self, *arguments: Any) -> None:
        """Leaves notes on shards, if one other layer alone uses them."""
        if self._recomputable:
            leave_notes(self, *arguments)

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
        width = layout.wire_dtype(self.compute_dtype).size
        stages = self.stages()
        wanted = self._samples or stages[0].wanted()
        shape = tuple(input_shape)
        moves = [Move(shape, input_place, wanted, layout.owner, width, before)]
        if self._samples is None:
            return moves
        kernels = [getattr(self, name) for s in stages for name in s.names]
        return moves + [
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
        ]

    def needed(self) -> list[Needed]:
        """The weights that are sent, if the layer is split by samples."""
        layout = self._samples
        # With LoRA or DoRA the kernel is made of several weights, by Keras.
        if layout is None or is_adapted(self):
            return []
        wire = layout.wire_dtype(self.compute_dtype).name
        return [
            Needed(getattr(self, name), layout.devices, layout.owner, wire)
            for stage in self.stages()
            for name in stage.names
        ]

    @property
    def is_sharded(self) -> bool:
        """Whether the weights are in shards now."""
        return any(isinstance(stored(v), ShardedVariable) for v in self.weights)

    @property
    def is_spread(self) -> bool:
        """Whether devices share the work: by filters or by samples."""
        return self._samples is not None or self.is_sharded

    @property
    def will_spread(self) -> bool:
        """Whether devices will share the work, as it has been laid out."""
        return self._samples is not None or self._layout is not None

    @property
    def leaves_notes(self) -> bool:
        """Whether what follows may be computed with the layer."""
        last = self.data_format == "channels_last"
        return last and takes_shards() and is_inference()

    @property
    def supports_jit(self) -> bool:
        """Whether XLA can compile the layer, for the one device that it is on.

        So it can where Keras' own code computes all of it.
        """
        return self._asked_jit and self.built and self.is_of_keras()

    @supports_jit.setter
    def supports_jit(self, value: bool) -> None:
        self._asked_jit = value

    def is_of_keras(self) -> bool:
        """Whether one device computes the layer as the Keras layer does.

        The chief of a cluster has threads enough to compute both gradients at
        once, so a stage puts them in an order there.
        """
        device, no_cluster = chief()
        direct = self.algorithm in (None, "direct")
        keras_computes = (direct and no_cluster) or device_type(device) != "CPU"
        return keras_computes and not self.will_spread


def _on_devices(
    stage: Stage,
    devices: Sequence[str],
    inputs: Sequence[tf.Tensor],
    weights: Sequence[Sequence[tf.Tensor]],
    firsts: Sequence[int],
    is_last: bool,
) -> list[tf.Tensor]:
    """Runs a stage on each device, with its input and its weights.

    Args:
        stage: The stage.
        devices: Names of the devices.
        inputs: Input tensors, one for each device.
        weights: For each weight, its tensor on each device.
        firsts: The first filter or channel of each device.
        is_last: Whether it is the layer's last stage, after which comes the
            activation.
    """
    return [
        stage.on(
            device,
            x,
            operands,
            first,
            stage.with_activation(device) if is_last else None,
        )
        for device, x, first, *operands in zip(
            devices, inputs, firsts, *weights, strict=True
        )
    ]
