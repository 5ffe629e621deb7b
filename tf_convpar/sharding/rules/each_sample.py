"""Layers that treat each sample alone, where the samples are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers import is_per_sample_activation
from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import apart
from tf_convpar.placement import everywhere_in_turn
from tf_convpar.placement import on_device
from tf_convpar.placement import value_of

_L = keras.layers
# Batches are of about so many samples, where that decides whether weights or
# feature maps are the fewer numbers.
_SAMPLES = 32


class SampleRule:
    """How layers of some types work on shards of samples.

    The default is right for whatever treats each sample alone: the layer's own
    `call` runs on each device, on the samples there. Weights stay where they
    are stored; each device is sent a copy, and their gradients return.
    """

    layers: tuple[type, ...] = ()
    # Whether a device computes otherwise than the layer's own `call`.
    computes = False

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the rule holds for a layer as it is set up.

        Args:
            layer: Built.
            shapes: Of its inputs and outputs, with the batch.
        """
        within = list(layer._flatten_layers(include_self=False))
        if any(one.activity_regularizer is not None for one in within):
            return False  # It is told the feature maps of all samples.
        # Else feature maps are fewer numbers, and are joined.
        held = sum(math.prod(weight.shape) for weight in layer.weights)
        return held <= _SAMPLES * sum(_numbers(shape) for shape in shapes)

    def moves(
        self,
        layer: Any,
        layout: SampleLayout,
        shapes: Sequence[tuple[int, ...]],
        lies: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """What the layer sends: inputs that lie elsewhere, and its weights.

        Args:
            layer: Built.
            layout: How samples lie.
            shapes: Of the inputs, with the number of samples.
            lies: Where they are.
            before: Whether anything before the layer learns.
            training: Whether this is a training step.
        """
        inputs = [
            sent(layer, shape, place, layout, before, layout)
            for shape, place in zip(shapes, lies, strict=True)
        ]
        return inputs + [
            sent(
                layer,
                weight.shape,
                getattr(weight, "layout", None),
                layout.devices,
                weight.trainable,
                layout,
            )
            for weight in getattr(layer, "weights", [])
        ]

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """The layer, its arguments' tensors cut by samples.

        Args:
            layer: Built.
            layout: How samples lie.
            args: Positional arguments, whose tensors lie as may be.
            kwargs: Keyword arguments.

        Returns:
            What the layer returns, each tensor in shards of samples.
        """
        return each_alone(layer, type(layer).call, layout, args, kwargs)

    def on_one(
        self,
        layer: Any,
        x: tf.Tensor,
        weights: Mapping[str, tf.Tensor],
        device: str,
    ) -> Sequence[tf.Tensor]:
        """What one device computes in training, where the rule `computes`.

        Args:
            layer: Built.
            x: The samples there.
            weights: All of them, by their names.
            device: One of its type.

        Returns:
            The output, and whatever else is made.
        """
        raise NotImplementedError


def sent(
    layer: Any,
    shape: Sequence[int],
    lies: Place,
    wanted: Place,
    returns: bool,
    layout: SampleLayout,
) -> Move:
    """Something of a layer that is to lie elsewhere, on the layout's wire."""
    own = tf.as_dtype(getattr(layer, "compute_dtype", "float32")).size
    width = min(own, tf.as_dtype(layout.wire).size) if layout.wire else own
    return Move(tuple(shape), lies, wanted, layout.owner, width, returns)


def each_alone(
    layer: Any, call: Any, layout: SampleLayout, args: Any, kwargs: Any
) -> Any:
    """`call`, with the layer first, on each device, of the samples there."""
    flat = keras.tree.flatten((args, kwargs))
    cut = [apart(x, layout).shards if is_cut(x) else None for x in flat]
    weights = getattr(layer, "weights", [])
    copies = [_copies(weight, layout) for weight in weights]
    structure: Any = None

    def on(i: int) -> list[tf.Tensor]:
        def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
            nonlocal structure
            left = iter(tensors)
            own = [
                x if pieces is None else next(left)
                for x, pieces in zip(flat, cut, strict=True)
            ]
            given = keras.tree.pack_sequence_as((args, kwargs), own)
            state = list(zip(weights, left, strict=True))
            with keras.StatelessScope(
                state, collect_losses=True, initialize_variables=False
            ) as scope:
                structure = call(layer, *given[0], **given[1])
            if scope.losses:
                raise ValueError(
                    f"Expected layer '{layer.name}' to add no losses, as it "
                    "is called for some samples at a time. Received: "
                    "`add_loss` in its `call`. Remove `works_per_sample` from "
                    "its class."
                )
            return keras.tree.flatten(structure)

        own = [pieces[i] for pieces in cut if pieces is not None]
        place = on_device(run, layout.devices[i])
        return list(place(*own, *(c[i] for c in copies)))

    idle = _idle([pieces for pieces in cut if pieces is not None])
    found = [None if i in idle else on(i) for i in range(len(layout.devices))]
    like = next(results for results in found if results is not None)
    known = all(x.shape[1:].is_fully_defined() for x in like)
    by_device = [
        results or (_none_of(like, layout.devices[i]) if known else on(i))
        for i, results in enumerate(found)
    ]
    return keras.tree.pack_sequence_as(
        structure,
        [
            ShardedTensor(shards, layout)
            for shards in zip(*by_device, strict=True)
        ],
    )


def _idle(cut: Sequence[Sequence[tf.Tensor]]) -> list[int]:
    """Devices that are known to get no samples while others get some.

    Operations refuse empty tensors: a maximum, what an LSTM consists of.
    """
    idle = [
        i
        for i, pieces in enumerate(zip(*cut, strict=True))
        if all(piece.shape[0] == 0 for piece in pieces)
    ]
    return idle if len(idle) < len(cut[0]) else []


def _none_of(like: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """What a layer makes of no samples, on a device."""

    def run() -> list[tf.Tensor]:
        return [tf.zeros([0, *x.shape[1:]], x.dtype) for x in like]

    return list(on_device(run, device)())


def is_cut(x: Any) -> bool:
    """Whether an argument of a layer has samples."""
    return isinstance(x, ShardedTensor) or (
        isinstance(x, tf.Tensor) and x.shape.rank != 0
    )


def _copies(weight: Any, layout: SampleLayout) -> list[tf.Tensor]:
    source = value_of(weight)
    wire = layout.wire if source.dtype.is_floating else None
    return everywhere_in_turn(source, layout.devices, layout.owner, wire)


def _numbers(shape: Sequence[int | None]) -> int:
    """Of one sample."""
    return math.prod(n or 1 for n in list(shape)[1:])


class EachSample(SampleRule):
    """Layers that have nothing to say about other samples."""

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
    """Layers that are told along which axis they work: not the samples'."""

    layers = (
        *(_L.Concatenate, _L.Softmax, _L.UnitNormalization),
        *(_L.Normalization, _L.LayerNormalization, _L.RMSNormalization),
        *(_L.GroupNormalization, _L.Dot),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Unless an axis is that of samples."""
        axes = getattr(layer, "axis", getattr(layer, "axes", None))
        rank = len(shapes[0])
        flat = keras.tree.flatten(axes)
        return all(a is not None and a % rank != 0 for a in flat) and (
            super().holds(layer, shapes)
        )


class Einsum(SampleRule):
    """A dense layer that is told what to multiply by an equation."""

    layers = (_L.EinsumDense,)

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """If samples come first in the output too, and not in the kernel."""
        equation = layer.equation.replace(" ", "")
        given, kernel, made = re.split(",|->", equation)
        samples = given[0]
        return (
            made.startswith(samples)
            and samples not in kernel
            and super().holds(layer, shapes)
        )


class Activation(SampleRule):
    """Keras' own activations."""

    layers = (_L.Activation,)

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Any but a function of the user's."""
        return is_per_sample_activation(layer.activation)


class Recurrent(SampleRule):
    """Recurrent layers, but for those that keep states from batch to batch.

    And those that drop out: their masks are of all samples.
    """

    layers = (
        *(_L.SimpleRNN, _L.GRU, _L.LSTM, _L.Bidirectional),
        *(_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Without states of their own, and without dropout."""
        inner = getattr(layer, "forward_layer", layer)
        back = getattr(layer, "backward_layer", layer)
        if type(inner) not in self.layers or type(back) not in self.layers:
            return False
        return super().holds(layer, shapes) and not any(
            one.stateful or one.dropout or one.recurrent_dropout
            for one in (inner, back)
        )


class Attention(SampleRule):
    """Attention without dropout."""

    layers = (
        *(_L.Attention, _L.AdditiveAttention, _L.MultiHeadAttention),
        _L.GroupQueryAttention,
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Masks of dropout are of all samples."""
        rate = getattr(layer, "dropout", getattr(layer, "_dropout", 0))
        return not rate and super().holds(layer, shapes)


class OfTheUser(SampleRule):
    """Layers whose class says `works_per_sample = True`."""

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """As it says, if it keeps no state of its own, such as a seed."""
        if not getattr(layer, "works_per_sample", False):
            return False
        stateless = not any(
            one._non_trainable_variables or one._seed_generators
            for one in layer._flatten_layers()
        )
        return stateless and super().holds(layer, shapes)
