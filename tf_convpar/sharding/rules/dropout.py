"""Dropout on shards of channels, with the mask of the unsplit layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import along_channels

_L = keras.layers


class Dropout(Rule):
    """Every device draws the mask of all channels, and uses its own.

    From the same seed that is the mask of the unsplit layer, and nothing but
    the seed travels.
    """

    layers = (
        *(_L.Dropout, _L.SpatialDropout1D, _L.SpatialDropout2D),
        _L.SpatialDropout3D,
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input."""
        (layout,) = inputs
        if type(layer) is not _L.Dropout and not along_channels(layer, layout):
            return None
        return layout if layout.blocks == 1 else None

    def call(
        self,
        layer: Any,
        inputs: Sequence[ShardedTensor],
        training: Any = False,
        **kwargs: Any,
    ) -> ShardedTensor:
        """Multiplies each shard by its part of the mask, in training."""
        (x,) = inputs
        if not training or layer.rate == 0:
            return x
        seed = tf.cast(layer.seed_generator.next(), "int32")
        axis = x.layout.axis + x.ndim
        shards = []
        first = 0
        for shard, size, device in zip(
            x.shards, x.layout.sizes, x.layout.devices, strict=True
        ):

            def run(shard: tf.Tensor, first: int = first) -> tf.Tensor:
                mask = _mask(layer, shard, axis, x.layout.total, seed)
                if mask.shape[axis] != 1:
                    own = range(first, first + shard.shape[axis])
                    mask = tf.gather(mask, own, axis=axis)
                return shard * mask

            shards.append(on_device(run, device)(shard))
            first += size
        return ShardedTensor(shards, x.layout)


def _mask(
    layer: Any, shard: tf.Tensor, axis: int, total: int, seed: tf.Tensor
) -> tf.Tensor:
    """The mask of all channels, zeros and scales; of size 1 on shared axes."""
    shape = tf.unstack(tf.shape(shard))
    shape[axis] = total
    if type(layer) is _L.Dropout:  # The other types are subclasses of it.
        noise = layer.noise_shape or [None] * len(shape)
    else:
        noise = [None, *[1] * (len(shape) - 1)]
        noise[axis] = None
    kept = [
        n if own is None else own for n, own in zip(shape, noise, strict=True)
    ]
    ones = tf.ones(kept, shard.dtype)
    ones = tf.ensure_shape(
        ones,
        [
            total if a == axis and own is None else own
            for a, own in enumerate(noise)
        ],
    )
    return tf.nn.experimental.stateless_dropout(
        ones, rate=layer.rate, seed=seed
    )
