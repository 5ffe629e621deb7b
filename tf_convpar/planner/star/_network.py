"""The planner's view of a network: the shapes of its convolutions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from collections.abc import Sequence

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

    def parameters(self, filters: int) -> int:
        """Numbers in `filters` kernels and their biases."""
        each = math.prod(self.window) * (self.channels // self.groups)
        return filters * (each + self.bias)


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


def network(
    kernels: Sequence[int] = (500, 1500),
    batch: int = 64,
    image: Sequence[int] = (32, 32, 3),
    window: int = 5,
) -> Network:
    """A network of convolutions, each followed by 2x2 pooling.

    ```python
    network((500, 1500)).convolutions[1].output  # (10, 10)
    ```

    The default has the size of paper 1 (Marques et al., 2018): two
    convolutions of 500 and 1500 kernels on images of CIFAR-10. The paper's
    window, padding and pooling are not known to us. Windows of 5x5 without
    padding, and pooling of 2x2, are our choice.

    Args:
        kernels: Number of kernels of each convolution.
        batch: Images in a step.
        image: Height, width and channels of an image.
        window: Height and width of a kernel.

    Returns:
        The network. Its layers have the names that Keras gives: `conv2d`,
        `conv2d_1`.

    Raises:
        ValueError: A number is below 1, or an image becomes smaller than the
            window.
    """
    if not kernels or min(*kernels, batch, window, 1) < 1:
        raise ValueError(
            "Expected kernels, batch and window of at least 1. Received: "
            f"kernels={tuple(kernels)}, batch={batch}, window={window}."
        )
    *pixels, channels = image
    convolutions = []
    for i, filters in enumerate(kernels):
        output = tuple(n - window + 1 for n in pixels)
        if min(output) < 1:
            raise ValueError(
                f"Expected images of at least {window} pixels for a window "
                f"of {window}. Received: {pixels} pixels at convolution "
                f"{i + 1} of {len(kernels)}."
            )
        convolutions.append(
            StarConvolution(
                f"conv2d_{i}" if i else "conv2d",
                tuple(pixels),
                output,
                channels,
                filters,
                (window,) * len(pixels),
                input_gradient=i > 0,
            )
        )
        pixels, channels = [n // 2 for n in output], filters
    return Network(tuple(convolutions), batch)
