"""Activations that treat every number alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers import is_elementwise_activation
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import on_shards

_L = keras.layers


class Activations(Rule):
    """And whatever else is done to each number alone."""

    layers = (
        *(_L.Activation, _L.ReLU, _L.LeakyReLU, _L.ELU),
        *(_L.Identity, _L.Rescaling),
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """As the input; softmax and the like mix channels."""
        if isinstance(layer, _L.Activation):
            alone = is_elementwise_activation(layer.activation)
        elif isinstance(layer, _L.Rescaling):
            # Each may have numbers of its own for the channels.
            alone = all(
                isinstance(n, int | float) for n in (layer.scale, layer.offset)
            )
        else:
            alone = True
        return inputs[0] if alone else None


class SlopeOfEachChannel(Rule):
    """PReLU, its slopes beside the shards."""

    layers = (_L.PReLU,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """As the input, with channels last."""
        return inputs[0] if inputs[0].axis == -1 else None

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """Slopes along the channels, unless all channels share them."""
        if layer.alpha.shape[-1] == 1 != inputs[0].total:
            return {}
        return {"alpha": dataclasses.replace(inputs[0], wire=None)}

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """max(0, x) + slope min(0, x)."""
        (x,) = inputs
        alpha = layer.alpha._value
        if hasattr(alpha, "sharded_value"):
            slopes: Sequence[Any] = alpha.sharded_value().shards
        else:
            slopes = [tf.convert_to_tensor(alpha)] * len(x.shards)

        def run(shard: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
            slope = tf.cast(slope, shard.dtype)
            return tf.nn.relu(shard) - slope * tf.nn.relu(-shard)

        return on_shards(run, x.layout, x.shards, slopes)
