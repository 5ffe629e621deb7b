"""What a rule is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device

Shape = Sequence[int | None]


class Rule:
    """How layers of some types work on shards.

    ```python
    class Cropping(Rule):
        layers = (keras.layers.Cropping2D,)

        def output(self, layer, inputs, shape):
            return inputs[0] if along_channels(layer, inputs[0]) else None
    ```

    The default `call` runs the layer's own `call` on each shard, which is
    right for layers without weights that work on each channel alone.
    """

    layers: tuple[type, ...] = ()

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """How the output lies in shards.

        Args:
            layer: Built or not.
            inputs: Of each input: all are in shards.
            shape: Of the first input, with the batch.

        Returns:
            None where the rule does not hold: inputs are then joined.
        """
        raise NotImplementedError

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """Layouts of the weights that are cut, by their attributes."""
        return {}

    def moves(
        self, layer: Any, inputs: Sequence[Layout], shapes: Sequence[Any]
    ) -> list[Move]:
        """What the layer sends; most send nothing.

        Args:
            layer: Built.
            inputs: As `output` was told.
            shapes: Of the inputs, with the number of samples.
        """
        return []

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> Any:
        """The layer, on shards that lie as `output` was told.

        Args:
            layer: Built, its weights placed.
            inputs: As many as it was called with.
            **kwargs: Of the layer's `call`, such as `training`.

        Returns:
            Shards that lie as `output` said, or a tensor on the chief if it
            said so by a layout without devices.
        """
        (x,) = inputs
        layout = self.output(layer, [x.layout], x.shape)
        run = functools.partial(type(layer).call, layer, **kwargs)
        return on_shards(run, layout or x.layout, x.shards)


def on_shards(
    fn: Callable[..., tf.Tensor], layout: Layout, *operands: Sequence[Any]
) -> ShardedTensor:
    """`fn` on each device, with the shard that is there of each operand."""
    return ShardedTensor(
        [
            on_device(fn, device)(*shards)
            for device, *shards in zip(layout.devices, *operands, strict=True)
        ],
        layout,
    )


def along_channels(layer: Any, layout: Layout) -> bool:
    """Whether shards are cut along what the layer takes for channels."""
    last = getattr(layer, "data_format", "channels_last") == "channels_last"
    return layout.blocks == 1 and (layout.axis == -1) == last
