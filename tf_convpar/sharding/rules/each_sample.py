"""Layers that treat each sample alone, where the samples are."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar.layers import is_per_sample_activation
from tf_convpar.placement import Move
from tf_convpar.placement import Needed
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import copies_of
from tf_convpar.placement import in_shards
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._op_call import call_on

_L = keras.layers
# An assumed batch size, by which either weights or feature maps are the fewer
# numbers.
SAMPLES = 32


class SampleRule:
    """The way in which layers of some types work on shards of samples.

    The default is right for whatever treats each sample alone: the layer's own
    `call` runs on each device, on the samples there. Weights stay where they
    are stored. Each device is sent a copy, and their gradients return.
    """

    layers: tuple[type, ...] = ()
    # Whether devices compute otherwise than by the layer's own `call`.
    computes = False
    # Whether devices wait for what others make of their samples in the call.
    waits = True

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the rule holds for a layer as it is set up.

        Args:
            layer: The built layer.
            shapes: Shapes of its inputs and outputs, with the batch.
        """
        inner_layers = layers_of(layer)
        if any(
            inner.activity_regularizer is not None for inner in inner_layers
        ):
            return False  # A regularizer needs the maps of all samples.
        # If feature maps are fewer numbers than weights, they are joined.
        weight_numbers = sum(
            math.prod(weight.shape) for weight in layer.weights
        )
        return weight_numbers <= SAMPLES * sum(
            _numbers(shape) for shape in shapes
        )

    def moves(
        self,
        layer: Any,
        layout: SampleLayout,
        shapes: Sequence[tuple[int, ...]],
        input_places: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """The tensors that the layer sends: inputs that lie elsewhere, weights.

        Args:
            layer: The built layer.
            layout: Layout of the samples.
            shapes: Shapes of the inputs, with the number of samples.
            input_places: Places where the inputs are.
            before: Whether anything before the layer learns.
            training: Whether this is a training step.
        """
        inputs = [
            sent(layer, shape, place, layout, before, layout)
            for shape, place in zip(shapes, input_places, strict=True)
        ]
        return inputs + [
            dataclasses.replace(
                sent(
                    layer,
                    weight.shape,
                    getattr(weight, "layout", None),
                    layout.devices,
                    weight.trainable,
                    layout,
                ),
                packed=True,
            )
            for weight in getattr(layer, "weights", [])
        ]

    def needed(
        self, layer: Any, layout: SampleLayout, training: bool
    ) -> list[Needed]:
        """The weights that are sent in a call.

        Args:
            layer: The built layer.
            layout: Layout of the samples.
            training: Whether this may be a training step.
        """
        return [
            Needed(weight, layout.devices, layout.owner, _wire(weight, layout))
            for weight in getattr(layer, "weights", [])
        ]

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """Runs the layer, with the tensors among its arguments cut by samples.

        Args:
            layer: The built layer.
            layout: Layout of the samples.
            args: Positional arguments, whose tensors may lie anywhere.
            kwargs: Keyword arguments, likewise.

        Returns:
            What the layer returns, each tensor in shards of samples.
        """
        return each_alone(layer, layout, args, kwargs)

    def on_one(
        self,
        layer: Any,
        x: tf.Tensor,
        weights: Mapping[str, tf.Tensor],
        device: str,
    ) -> Sequence[tf.Tensor]:
        """Computes one device's part in training, if the rule `computes`.

        Args:
            layer: The built layer.
            x: The samples on the device.
            weights: Values of all weights, by the weights' names.
            device: Name of the device.

        Returns:
            The output, and whatever else is computed.
        """
        raise NotImplementedError


def sent(
    layer: Any,
    shape: Sequence[int],
    place: Place,
    wanted: Place,
    returns: bool,
    layout: SampleLayout,
) -> Move:
    """The move of an input or weight of a layer, in the layout's wire dtype.

    It travels in the layer's compute dtype if that is narrower.
    """
    compute_width = tf.as_dtype(getattr(layer, "compute_dtype", "float32")).size
    width = (
        min(compute_width, tf.as_dtype(layout.wire).size)
        if layout.wire
        else compute_width
    )
    return Move(tuple(shape), place, wanted, layout.owner, width, returns)


def each_alone(
    layer: Any, layout: SampleLayout, args: Any, kwargs: Any, **op_options: Any
) -> Any:
    """Computes a layer on each device, on the samples there.

    Args:
        layer: The built layer.
        layout: Layout of the samples.
        args: Positional arguments, whose tensors may lie anywhere.
        kwargs: Keyword arguments, likewise.
        **op_options: Arguments of the op that computes the layer (`OpCall`).
    """
    flat = keras.tree.flatten((args, kwargs))
    sharded = [in_shards(x, layout) if is_cut(x) else None for x in flat]
    weights = getattr(layer, "weights", [])
    copies = [_copies(weight, layout) for weight in weights]
    structure: Any = None

    def outputs_on(i: int) -> list[tf.Tensor]:
        call = functools.partial(
            call_on(layout.devices[i], layer), **op_options
        )

        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            nonlocal structure
            remaining = iter(tensors)
            flat_arguments = [
                x if pieces is None else next(remaining)
                for x, pieces in zip(flat, sharded, strict=True)
            ]
            arguments = keras.tree.pack_sequence_as(
                (args, kwargs), flat_arguments
            )
            state = list(zip(weights, remaining, strict=True))
            with keras.StatelessScope(
                state, collect_losses=True, initialize_variables=False
            ) as scope:
                structure = call(layer, *arguments[0], **arguments[1])
            if scope.losses:
                raise ValueError(
                    f"Expected layer '{layer.name}' to add no losses, as it "
                    "is called for some samples at a time. Received: "
                    "`add_loss` in its `call`. Remove `works_per_sample` from "
                    "its class."
                )
            return keras.tree.flatten(structure)

        shards_here = [
            pieces.shards[i] for pieces in sharded if pieces is not None
        ]
        place = on_device(run, layout.devices[i])
        return list(place(*shards_here, *(c[i] for c in copies)))

    by_device = [outputs_on(i) for i in range(len(layout.devices))]
    cut_input = next(pieces for pieces in sharded if pieces is not None)
    return keras.tree.pack_sequence_as(
        structure,
        [
            cut_input.with_shards(shards, layout)
            for shards in zip(*by_device, strict=True)
        ],
    )


def is_cut(x: Any) -> bool:
    """Whether an argument of a layer has samples."""
    return isinstance(x, ShardedTensor) or (
        isinstance(x, tf.Tensor) and x.shape.rank != 0
    )


def _copies(weight: Any, layout: SampleLayout) -> list[tf.Tensor]:
    wire = _wire(weight, layout)
    return copies_of(weight, layout.devices, layout.owner, wire)


def _wire(weight: Any, layout: SampleLayout) -> str | None:
    """The dtype in which a weight travels; None for its own."""
    return layout.wire if tf.as_dtype(weight.dtype).is_floating else None


def _numbers(shape: Sequence[int | None]) -> int:
    """The amount of numbers in one sample of this shape."""
    return math.prod(n or 1 for n in list(shape)[1:])


class EachSample(SampleRule):
    """Layers that treat each sample alone, with any arguments."""

    layers = (
        *(_L.MaxPooling1D, _L.MaxPooling2D, _L.MaxPooling3D),
        *(_L.AveragePooling1D, _L.AveragePooling2D, _L.AveragePooling3D),
        *(_L.GlobalAveragePooling1D, _L.GlobalMaxPooling1D),
        *(_L.GlobalAveragePooling2D, _L.GlobalMaxPooling2D),
        *(_L.GlobalAveragePooling3D, _L.GlobalMaxPooling3D),
        *(_L.ZeroPadding1D, _L.ZeroPadding2D, _L.ZeroPadding3D),
        *(_L.Cropping1D, _L.Cropping2D, _L.Cropping3D, _L.CenterCrop),
        *(_L.UpSampling1D, _L.UpSampling2D, _L.UpSampling3D, _L.Resizing),
        *(_L.ReLU, _L.LeakyReLU, _L.ELU, _L.PReLU),
        *(_L.Identity, _L.Rescaling, _L.Masking),
        *(_L.Flatten, _L.Reshape, _L.Permute, _L.RepeatVector),
        *(_L.Add, _L.Subtract, _L.Multiply, _L.Average),
        *(_L.Maximum, _L.Minimum, _L.Dense, _L.Embedding),
    )


class AlongAnAxis(SampleRule):
    """Layers that are told their axis, which must not be that of samples."""

    layers = (
        *(_L.Concatenate, _L.Softmax, _L.UnitNormalization),
        *(_L.Normalization, _L.LayerNormalization, _L.RMSNormalization),
        *(_L.GroupNormalization, _L.Dot),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether no axis of the layer is that of samples."""
        axes = getattr(layer, "axis", getattr(layer, "axes", None))
        rank = len(shapes[0])
        flat = keras.tree.flatten(axes)
        return all(a is not None and a % rank != 0 for a in flat) and (
            super().holds(layer, shapes)
        )


class Einsum(SampleRule):
    """A dense layer whose equation says what it multiplies."""

    layers = (_L.EinsumDense,)

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the output has samples first too, and the kernel has none."""
        equation = layer.equation.replace(" ", "")
        inputs, kernel, outputs = re.split(",|->", equation)
        samples = inputs[0]
        return (
            outputs.startswith(samples)
            and samples not in kernel
            and super().holds(layer, shapes)
        )


class Activation(SampleRule):
    """Keras' own activations."""

    layers = (_L.Activation,)

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the activation is one of Keras, not the user's function."""
        return is_per_sample_activation(layer.activation)


class Recurrent(SampleRule):
    """Recurrent layers that neither keep states between batches nor drop out.

    A dropout's mask is drawn for all samples.
    """

    layers = (
        *(_L.SimpleRNN, _L.GRU, _L.LSTM, _L.Bidirectional),
        *(_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the layer has neither states of its own nor dropout."""
        forward = getattr(layer, "forward_layer", layer)
        backward = getattr(layer, "backward_layer", layer)
        if (
            type(forward) not in self.layers
            or type(backward) not in self.layers
        ):
            return False
        return super().holds(layer, shapes) and not any(
            direction.stateful
            or direction.dropout
            or direction.recurrent_dropout
            for direction in (forward, backward)
        )


class Attention(SampleRule):
    """Attention without dropout, whose mask is drawn for all samples."""

    layers = (
        *(_L.Attention, _L.AdditiveAttention, _L.MultiHeadAttention),
        _L.GroupQueryAttention,
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the layer has no dropout, whose masks are of all samples."""
        return not getattr(layer, "dropout", 0) and super().holds(layer, shapes)
