"""Flatten and Dense: sums travel instead of feature maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import along_channels
from tf_convpar.sharding.rules._rule import on_shards


class Flatten(Rule):
    """Each device flattens its feature maps."""

    layers = (keras.layers.Flatten,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """Features of one pixel after another; each has all channels."""
        (layout,) = inputs
        pixels = _pixels(shape)
        # With channels first, or to a Keras layer that says so, the order of
        # features is another.
        if layout.axis != -1 or pixels is None:
            return None
        if not along_channels(layer, layout):
            return None
        return dataclasses.replace(layout, blocks=pixels)

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Each shard in a row."""
        (x,) = inputs
        layout = self.output(layer, [x.layout], x.shape) or x.layout

        def run(shard: tf.Tensor) -> tf.Tensor:
            return tf.reshape(shard, [-1, tf.reduce_prod(shard.shape[1:])])

        return on_shards(run, layout, x.shards)


def _pixels(shape: Shape) -> int | None:
    """Of an image with channels last; None if that is not known."""
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
    ) -> Layout | None:
        """None but where sums are fewer numbers than features.

        Those that would have to travel, of one sample.
        """
        (layout,) = inputs
        others = [
            n
            for n, device in zip(layout.sizes, layout.devices, strict=True)
            if device != layout.owner
        ]
        features = layout.blocks * sum(others)
        plain = not getattr(layer, "lora_enabled", False)
        plain = plain and not getattr(layer, "quantization_mode", None)
        flat = len(shape) == 2
        fewer = layer.units * len(others) < features
        if layout.axis != -1 or not (plain and flat and fewer):
            return None
        return on_chief(layout)

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """Rows of the kernel beside the features they belong to."""
        return {"_kernel": dataclasses.replace(inputs[0], axis=-2, wire=None)}

    def moves(
        self, layer: Any, inputs: Sequence[Layout], shapes: Sequence[Any]
    ) -> list[Move]:
        """A sum of each device, and back its gradient."""
        (layout,) = inputs
        width = tf.as_dtype(layer.compute_dtype).size
        sums = (shapes[0][0], layer.units)
        return [Move(sums, layout.devices, None, layout.owner, width)]

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> Any:
        """A tensor on the chief."""
        (x,) = inputs
        if self.output(layer, [x.layout], x.shape) is None:
            # LoRA, say, enabled after the weights were placed.
            return type(layer).call(layer, x.joined(), **kwargs)
        rows = layer._kernel._value.sharded_value().shards

        def multiply(shard: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
            return tf.matmul(shard, tf.cast(rows, shard.dtype))

        sums = on_shards(multiply, x.layout, x.shards, rows).shards

        def add(*sums: tf.Tensor) -> tf.Tensor:
            return tf.add_n(list(sums))

        y = on_device(add, x.layout.owner)(*sums)
        if layer.bias is not None:
            y = y + tf.cast(layer.bias, y.dtype)
        return layer.activation(y) if layer.activation else y


def on_chief(layout: Layout) -> Layout:
    """Says that the output is a tensor on the chief."""
    return dataclasses.replace(layout, devices=(layout.owner,), sizes=(1,))
