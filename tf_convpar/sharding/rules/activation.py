"""Activations that treat every number alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import stored
from tf_convpar.layers import is_elementwise_activation
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import on_shards

_L = keras.layers


class Activations(Rule):
    """Activations, and other layers that treat every number alone."""

    layers = (
        *(_L.Activation, _L.ReLU, _L.LeakyReLU, _L.ELU),
        *(_L.Identity, _L.Rescaling),
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input; None for softmax and what mixes channels."""
        if isinstance(layer, _L.Activation):
            elementwise = is_elementwise_activation(layer.activation)
        elif isinstance(layer, _L.Rescaling):
            # Scale and offset may also have a number for each channel.
            elementwise = all(
                isinstance(n, int | float) for n in (layer.scale, layer.offset)
            )
        else:
            elementwise = True
        return inputs[0] if elementwise else None


class SlopeOfEachChannel(Rule):
    """PReLU, whose slopes lie beside the shards."""

    layers = (_L.PReLU,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input, if channels are last."""
        return inputs[0] if inputs[0].axis == -1 else None

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """The layout of the slopes, unless all channels share them."""
        if layer.alpha.shape[-1] == 1 != inputs[0].total:
            return {}
        return {"alpha": dataclasses.replace(inputs[0], wire=None)}

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Computes max(0, x) + slope min(0, x) on each device."""
        (x,) = inputs
        alpha = stored(layer.alpha)
        if hasattr(alpha, "sharded_value"):
            slopes: Sequence[Any] = alpha.sharded_value().shards
        else:
            slopes = [tf.convert_to_tensor(alpha)] * len(x.shards)

        def run(shard: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
            slope = tf.cast(slope, shard.dtype)
            return tf.nn.relu(shard) - slope * tf.nn.relu(-shard)

        return on_shards(run, x.layout, x.shards, slopes)
