"""Layers that move or combine pixels, each channel alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import along_channels
from tf_convpar.sharding.rules._rule import on_shards

_L = keras.layers


class Spatial(Rule):
    """Pooling, padding, cropping, upsampling."""

    layers = (
        *(_L.MaxPooling1D, _L.MaxPooling2D, _L.MaxPooling3D),
        *(_L.AveragePooling1D, _L.AveragePooling2D, _L.AveragePooling3D),
        *(_L.ZeroPadding1D, _L.ZeroPadding2D, _L.ZeroPadding3D),
        *(_L.Cropping1D, _L.Cropping2D, _L.Cropping3D),
        *(_L.UpSampling1D, _L.UpSampling2D, _L.UpSampling3D),
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input, if it is cut along the layer's channels."""
        return inputs[0] if along_channels(layer, inputs[0]) else None


class GlobalPooling(Rule):
    """Pooling that leaves one number of each channel."""

    layers = (
        *(_L.GlobalAveragePooling1D, _L.GlobalMaxPooling1D),
        *(_L.GlobalAveragePooling2D, _L.GlobalMaxPooling2D),
        *(_L.GlobalAveragePooling3D, _L.GlobalMaxPooling3D),
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The input's layout; channels are the last axis unless pixels stay."""
        (layout,) = inputs
        if not along_channels(layer, layout):
            return None
        if layer.keepdims:
            return layout
        return dataclasses.replace(layout, axis=-1)


class Pixels(Rule):
    """A reshape of one number per channel to an image of one pixel."""

    layers = (_L.Reshape,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input, if that is one pixel with channels last."""
        (layout,) = inputs
        *pixels, channels = layer.target_shape
        # -1 would also stand for the channels of several pixels.
        one = {*pixels, *shape[1:-1]} <= {1}
        same = one and channels in (-1, layout.total)
        return layout if same and layout.axis == -1 else None

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Reshapes each shard, which keeps its own number of channels."""
        (x,) = inputs
        pixels = layer.target_shape[:-1]

        def run(shard: Any) -> Any:
            return keras.ops.reshape(shard, (-1, *pixels, shard.shape[-1]))

        return on_shards(run, x.layout, x.shards)
