"""The planner's view of a network: the shapes of its convolutions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator

from tf_convpar.files import Checked
from tf_convpar.files import Count
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Some
from tf_convpar.files import Unexpected
from tf_convpar.files import check_distinct


@dataclasses.dataclass(frozen=True)
class StarConvolution(Checked):
    """One convolution, whose kernels may be spread over devices.

    ```python
    StarConvolution("conv2d_1", (14, 14), (10, 10), 500, 1500, window=(5, 5))
    ```

    Attributes:
        name: Name of the layer.
        image: Pixels of its input on each spatial axis.
        output: Pixels of its feature maps on each spatial axis.
        channels: Channels of its input.
        filters: Number of its kernels, and of its feature maps' channels.
        window: Pixels of a kernel on each spatial axis.
        groups: Groups of its channels, as in `keras.layers.Conv2D`.
        bias: Whether it has a bias.
        input_gradient: Whether a layer before it learns, so that training
            needs the gradient of its input.
    """

    name: Name
    image: tuple[Count, ...]
    output: tuple[Count, ...]
    channels: Count
    filters: Count
    window: tuple[Count, ...]
    groups: Count = 1
    bias: bool = True
    input_gradient: bool = True

    def check(self) -> None:
        """Shapes have the same axes, and groups the same channels."""
        axes = len(self.image)
        for name in ("image", "output", "window"):
            if not axes or len(getattr(self, name)) != axes:
                raise Unexpected(
                    f"{axes or 'some'} numbers, one for each axis,", name
                )
        for name in ("channels", "filters"):
            if getattr(self, name) % self.groups:
                raise Unexpected(f"a multiple of groups, {self.groups},", name)

    def multiplications(self, batch: int, filters: int | None = None) -> int:
        """Multiplications of one pass: forward, or one of both gradients.

        They are those of `filters` kernels, or of all.
        """
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
class Network(Checked):
    """The convolutions of a model, in the order in which they run.

    Attributes:
        convolutions: Convolutions, with distinct names.
        batch: Images in a step.
        wire_bytes: Bytes of a number that travels between devices.
        slots: Numbers that the optimizer keeps for each parameter.
    """

    convolutions: Some[StarConvolution]
    batch: Count
    wire_bytes: Count = 4
    slots: Natural = 0

    def check(self) -> None:
        """Layers are told apart by their names."""
        check_distinct([c.name for c in self], "convolutions", "layers")

    def __iter__(self) -> Iterator[StarConvolution]:
        return iter(self.convolutions)


def fingerprint(network: Network) -> str:
    """A hash of the layers and their shapes, without the batch."""
    shapes = [dataclasses.astuple(convolution) for convolution in network]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
