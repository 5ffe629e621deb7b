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
        seed = layer.seed_generator.next()
        axis = x.layout.axis + x.ndim
        shards = []
        first = 0
        for shard, size, device in zip(
            x.shards, x.layout.sizes, x.layout.devices, strict=True
        ):

            def run(shard: tf.Tensor, first: int = first) -> tf.Tensor:
                total = x.layout.total
                return dropped(layer, shard, axis, first, total, seed)

            shards.append(on_device(run, device)(shard))
            first += size
        return ShardedTensor(shards, x.layout)


def dropped(
    layer: Any, shard: tf.Tensor, axis: int, first: Any, total: Any, seed: Any
) -> tf.Tensor:
    """A shard times its part of the mask of the unsplit layer.

    Args:
        layer: The Keras layer, one of `Dropout.layers`.
        shard: Feature maps.
        axis: The axis along which they are a part of the layer's input.
        first: The number of the first of them on that axis.
        total: The size of that axis in the layer's input.
        seed: A seed that the layer's seed generator has drawn.
    """
    shape = tf.unstack(tf.shape(shard))
    size = shard.shape[axis] or shape[axis]
    shape[axis] = total
    channels = -1
    if getattr(layer, "data_format", None) == "channels_first":
        channels = 1
    if type(layer) is _L.Dropout:  # The other types are subclasses of it.
        noise = list(layer.noise_shape or [None] * len(shape))
    else:
        noise = [None, *[1] * (len(shape) - 1)]
        noise[channels] = None
    mask_shape = [
        n if fixed_size is None else fixed_size
        for n, fixed_size in zip(shape, noise, strict=True)
    ]
    ones = tf.ones(mask_shape, shard.dtype)
    # As Keras makes numbers of TensorFlow's kind of a seed.
    seed = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), "int32")
    mask = tf.nn.experimental.stateless_dropout(
        ones, rate=layer.rate, seed=seed
    )
    if noise[axis] != 1:
        own_part = [slice(None)] * len(shape)
        own_part[axis] = slice(first, first + size)
        mask = mask[tuple(own_part)]
    return tf.ensure_shape(shard * mask, shard.shape)
