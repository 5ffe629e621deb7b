"""The base class of rules for shards of channels, and what they share."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Final

import tensorflow as tf

from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._op_call import call_on

Shape = Sequence[int | None]


class Chief(enum.Enum):
    """The place of an output that is one tensor, on the chief."""

    CHIEF = "chief"


CHIEF: Final = Chief.CHIEF


class Rule:
    """The way in which layers of some types work on shards of channels.

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
    ) -> Layout | Chief | None:
        """The layout of the output.

        Args:
            layer: The layer, built or not.
            inputs: Layouts of the inputs, all of which are in shards.
            shape: Shape of the first input, with the batch.

        Returns:
            A layout; or `CHIEF` if the output is one tensor on the chief; or
            None if the rule does not hold, so that inputs are joined.
        """
        raise NotImplementedError

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """Layouts of the weights that are cut, by the layer's attributes."""
        return {}

    def moves(
        self, layer: Any, inputs: Sequence[Layout], shapes: Sequence[Any]
    ) -> list[Move]:
        """The tensors that the layer sends; most layers send none.

        Args:
            layer: The built layer.
            inputs: Layouts of the inputs, as for `output`.
            shapes: Shapes of the inputs, with the number of samples.
        """
        return []

    def call(
        self, layer: Any, inputs: Sequence[ShardedTensor], **kwargs: Any
    ) -> Any:
        """Runs the layer on shards that lie as `output` was told.

        Args:
            layer: The built layer, whose weights are placed.
            inputs: All inputs of the call.
            **kwargs: Arguments of the layer's `call`, such as `training`.

        Returns:
            Shards that lie as `output` said, or a tensor on the chief if it
            said so.
        """
        (x,) = inputs
        layout = self.output(layer, [x.layout], x.shape)
        output_layout = layout if isinstance(layout, Layout) else x.layout
        return ShardedTensor(
            [
                on_device(
                    functools.partial(call_on(device, layer), layer, **kwargs),
                    device,
                )(shard)
                for device, shard in zip(
                    output_layout.devices, x.shards, strict=True
                )
            ],
            output_layout,
        )


def on_shards(
    fn: Callable[..., tf.Tensor], layout: Layout, *operands: Sequence[Any]
) -> ShardedTensor:
    """Runs `fn` on each device, with its own shard of each operand."""
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
