"""Layers of several inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape
from tf_convpar.sharding.rules._rule import on_shards

_L = keras.layers
# The most shards of one tensor. After a concatenation a device has several, and
# a graph of very many small ones takes longer than joining them.
_MOST_SHARDS = 16


class Elementwise(Rule):
    """Sums, products and the like, of inputs in shards of one layout."""

    layers: tuple[type, ...] = (
        *(_L.Add, _L.Subtract, _L.Multiply),
        *(_L.Average, _L.Maximum, _L.Minimum),
    )

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the inputs, which must all lie alike."""
        alike = all(inputs[0].matches(other) for other in inputs[1:])
        return inputs[0] if alike else None

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Runs the layer's own call on the shards of each device."""

        def run(*shards: Any) -> Any:
            return type(layer).call(layer, list(shards), **kwargs)

        return on_shards(run, inputs[0].layout, *(x.shards for x in inputs))


class Concatenate(Rule):
    """A concatenation that moves nothing: it only lists more shards.

    The shards of one input come after those of another.
    """

    layers = (_L.Concatenate,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of all shards in a row, if channels are concatenated."""
        first = inputs[0]
        axes = {layout.axis for layout in inputs}
        axis = layer.axis % len(shape) - len(shape)
        blocks = all(layout.blocks == 1 for layout in inputs)
        devices = tuple(d for layout in inputs for d in layout.devices)
        if axes != {axis} or not blocks or len(devices) > _MOST_SHARDS:
            return None
        sizes = tuple(n for layout in inputs for n in layout.sizes)
        return dataclasses.replace(first, devices=devices, sizes=sizes)

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> ShardedTensor:
        """Lists the shards of all inputs in a row."""
        layouts = [x.layout for x in inputs]
        layout = self.output(layer, layouts, inputs[0].shape)
        shards = [shard for x in inputs for shard in x.shards]
        return ShardedTensor(shards, layout or inputs[0].layout)
