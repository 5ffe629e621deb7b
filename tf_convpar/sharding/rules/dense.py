"""Flatten and Dense: sums travel instead of feature maps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import is_adapted
from tf_convpar._compat.keras import stored
from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._rule import CHIEF
from tf_convpar.sharding.rules._rule import Chief
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import along_channels
from tf_convpar.sharding.rules._rule import on_shards
from tf_convpar.sharding.rules.each_sample import SAMPLES

# Weights from which on it pays to send features to other devices and back.
_LARGE = 2**20


class Flatten(Rule):
    """Each device flattens its feature maps."""

    layers = (keras.layers.Flatten,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The input's layout, with a block of channels for each pixel."""
        (layout,) = inputs
        pixels = _pixels(shape)
        # The order of features is another if channels come first, in the maps
        # or by the layer's `data_format`.
        if layout.axis != -1 or pixels is None:
            return None
        if not along_channels(layer, layout):
            return None
        return dataclasses.replace(layout, blocks=pixels)

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Flattens each shard on its device."""
        (x,) = inputs
        layout = self.output(layer, [x.layout], x.shape) or x.layout

        def run(shard: tf.Tensor) -> tf.Tensor:
            return tf.reshape(shard, [-1, tf.reduce_prod(shard.shape[1:])])

        return on_shards(run, layout, x.shards)


def is_large(layer: Any) -> bool:
    """Whether a dense layer is worth splitting by its units.

    It then has so many weights that they should not travel, and an input of
    features only. It is not split by the rules for shards: where it is not
    split by units, the chief has all of it.
    """
    if type(layer) is not keras.layers.Dense or not layer.built:
        return False
    if is_adapted(layer) or getattr(layer, "quantization_mode", None):
        return False
    shape = (layer.get_build_config() or {}).get("input_shape") or ()
    weights = math.prod(layer.kernel.shape)
    of_a_sample = sum(layer.kernel.shape)
    large = weights >= _LARGE and weights > SAMPLES * of_a_sample
    return len(shape) == 2 and large


def _pixels(shape: Shape) -> int | None:
    """Count of pixels of an image with channels last; None if unknown."""
    count = 1
    for n in list(shape)[1:-1]:
        if n is None:
            return None
        count *= n
    return count


class Dense(Rule):
    """Each device multiplies its features by its rows of the kernel.

    The sums of all are added on the chief.
    """

    layers = (keras.layers.Dense,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Chief | None:
        """The chief, if sums are fewer numbers than features.

        Only features that would have to travel count. Both are of one sample.
        """
        (layout,) = inputs
        remote_sizes = [
            n
            for n, device in zip(layout.sizes, layout.devices, strict=True)
            if device != layout.owner
        ]
        features = layout.blocks * sum(remote_sizes)
        quantized = bool(getattr(layer, "quantization_mode", None))
        plain = not (is_adapted(layer) or quantized)
        flat = len(shape) == 2 and not is_large(layer)
        fewer = layer.units * len(remote_sizes) < features
        if layout.axis != -1 or not (plain and flat and fewer):
            return None
        return CHIEF

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """The layout of the kernel, whose rows lie beside their features."""
        return {"kernel": dataclasses.replace(inputs[0], axis=-2, wire=None)}

    def moves(
        self, layer: Any, inputs: Sequence[Layout], shapes: Sequence[Any]
    ) -> list[Move]:
        """The sum of each device, which is sent, and its gradient back."""
        (layout,) = inputs
        width = tf.as_dtype(layer.compute_dtype).size
        sums = (shapes[0][0], layer.units)
        return [Move(sums, layout.devices, None, layout.owner, width)]

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> Any:
        """Computes the sums on the devices, and the output on the chief."""
        (x,) = inputs
        if self.output(layer, [x.layout], x.shape) is None:
            # LoRA or DoRA, say, may have been enabled after the weights were
            # placed.
            return type(layer).call(layer, x.joined(), **kwargs)
        rows = stored(layer.kernel).sharded_value().shards

        def multiply(shard: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            return tf.matmul(shard, tf.cast(rows, shard.dtype))

        sums = on_shards(multiply, x.layout, x.shards, rows).shards

        def add(*sums: tf.Tensor) -> tf.Tensor:
            return tf.add_n(list(sums))

        y = on_device(add, x.layout.owner)(*sums)
        if layer.bias is not None:
            y = y + tf.cast(layer.bias, y.dtype)
        return layer.activation(y) if layer.activation else y
