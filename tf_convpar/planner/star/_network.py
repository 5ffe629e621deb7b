"""What the planner knows of a network: its convolutions, and no tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Convolution:
    """One convolution, whose kernels may be spread over devices.

    ```python
    Convolution("conv2d_1", (14, 14), (10, 10), 500, 1500, window=(5, 5))
    ```

    Attributes:
        name: Of the layer.
        image: Pixels of its input on each spatial axis.
        output: Pixels of its feature maps on each spatial axis.
        channels: Of its input.
        filters: Its kernels, and the channels of its feature maps.
        window: Pixels of a kernel on each spatial axis.
        groups: As in `keras.layers.Conv2D`.
        bias: Whether it has one.
        input_gradient: Whether a layer before it learns, so that training
            needs the gradient for its input.
    """

    name: str
    image: tuple[int, ...]
    output: tuple[int, ...]
    channels: int
    filters: int
    window: tuple[int, ...]
    groups: int = 1
    bias: bool = True
    input_gradient: bool = True

    def multiplications(self, batch: int, filters: int | None = None) -> int:
        """Of one pass: forward, or either gradient."""
        return (
            batch
            * math.prod(self.output)
            * math.prod(self.window)
            * (self.channels // self.groups)
            * (self.filters if filters is None else filters)
        )

    def input_values(self, batch: int) -> int:
        """Numbers in its input."""
        return batch * math.prod(self.image) * self.channels

    def output_values(self, batch: int, filters: int | None = None) -> int:
        """Numbers in the feature maps of `filters` kernels, or of all."""
        width = self.filters if filters is None else filters
        return batch * math.prod(self.output) * width

    def parameters(self, filters: int | None = None) -> int:
        """Numbers in `filters` kernels and their biases, or in all."""
        width = self.filters if filters is None else filters
        each = math.prod(self.window) * (self.channels // self.groups)
        return width * (each + self.bias)


@dataclasses.dataclass(frozen=True)
class Network:
    """The convolutions of a model, in the order in which they run.

    Attributes:
        convolutions: With distinct names.
        batch: Images in a step.
        wire_bytes: Of a number that travels between devices.
        slots: Numbers that the optimizer keeps for each parameter.
    """

    convolutions: tuple[Convolution, ...]
    batch: int
    wire_bytes: int = 4
    slots: int = 0

    def __iter__(self) -> Iterator[Convolution]:
        return iter(self.convolutions)


def fingerprint(network: Network) -> str:
    """A hash of the layers and their shapes, whatever the batch."""
    shapes = [dataclasses.astuple(convolution) for convolution in network]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
