"""How many bytes a training step of parallel layers must move, by theory."""

from __future__ import annotations

import dataclasses
import math

import keras

from tf_convpar.layers._base import ConvParallel


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes on the wire in one step, as the chief sees them.

    Attributes:
        sent: Inputs out, and gradients of feature maps out.
        received: Feature maps back, and input gradients back.
    """

    sent: int
    received: int

    @property
    def total(self) -> int:
        """Both directions."""
        return self.sent + self.received


def step_traffic(
    model: keras.Model, batch_size: int, training: bool = True
) -> Traffic:
    """What the star form needs: never a kernel, never a slot.

    ```python
    step_traffic(model, batch_size=64).total  # bytes in a training step
    ```

    For a layer with inputs of `x` elements and a shard of `n` of its feature
    maps, of `m` elements each, a device other than the chief's is sent `x`
    and returns `n * m`; in the backward pass it is sent `n * m` and returns
    `x`. The first layer with weights returns no input gradient, for nothing
    before it learns.

    Args:
        model: Built; its parallel layers are in its `layers`, or in those of
            models among them.
        batch_size: Images per step.
        training: Whether there is a backward pass.

    Returns:
        Bytes sent and received by the chief.
    """
    sent = received = 0
    first = True
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.Model) or not layer.weights:
            continue
        if isinstance(layer, ConvParallel) and layer.is_sharded:
            layout = layer._kernel._value.layout
            out, back = _elements(layer, batch_size)
            width = layer._wire_dtype_for(layer.compute_dtype).size
            for device, size in zip(layout.devices, layout.sizes, strict=True):
                if device == layout.owner:
                    continue
                maps = back * size // layer.filters
                sent += width * (out + training * maps)
                received += width * (maps + (training and not first) * out)
        first = False
    return Traffic(sent, received)


def _elements(layer: ConvParallel, batch_size: int) -> tuple[int, int]:
    """Elements of a layer's inputs and of its feature maps."""
    inputs = (batch_size, *layer.input.shape[1:])
    outputs = layer.compute_output_shape(inputs)
    return math.prod(inputs), math.prod(outputs)
