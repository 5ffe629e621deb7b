"""The interface of algorithms, and the shape of a convolution."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue

FORWARD = "forward"
INPUT_GRADIENT = "input_gradient"
KERNEL_GRADIENT = "kernel_gradient"
PASSES = (FORWARD, INPUT_GRADIENT, KERNEL_GRADIENT)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shape of one convolution, channels last, without groups.

    ```python
    Geometry((14, 14), 500, 1500, window=(5, 5), batch=64)
    ```

    Attributes:
        image: Size of the input on each spatial axis; None where unknown.
        channels: Number of channels of the input.
        filters: Number of kernels, and so of channels of the feature maps.
        window: Size of the kernel on each spatial axis.
        strides: One stride per spatial axis, all 1 if empty.
        padding: `"valid"` or `"same"`.
        dilation: One dilation rate per spatial axis, all 1 if empty.
        batch: Number of images; None if unknown.
        dtype: Name of the dtype of inputs and kernels.
    """

    image: tuple[int | None, ...]
    channels: int
    filters: int
    window: tuple[int, ...]
    strides: tuple[int, ...] = ()
    padding: str = "valid"
    dilation: tuple[int, ...] = ()
    batch: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        ones = (1,) * len(self.window)
        object.__setattr__(self, "strides", tuple(self.strides) or ones)
        object.__setattr__(self, "dilation", tuple(self.dilation) or ones)

    @property
    def is_dense(self) -> bool:
        """Whether neither strides nor dilation skip a pixel."""
        return all(n == 1 for n in (*self.strides, *self.dilation))

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after each axis of a dense convolution."""
        if self.padding == "valid":
            return ((0, 0),) * len(self.window)
        return tuple(((n - 1) // 2, n // 2) for n in self.window)

    @property
    def turned_pads(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after each axis of `dy`, for the input gradient.

        That pass convolves `dy` with the kernel turned by 180 degrees.
        """
        return tuple(
            (window - 1 - before, window - 1 - after)
            for window, (before, after) in zip(
                self.window, self.pads, strict=True
            )
        )

    @property
    def output(self) -> tuple[int | None, ...]:
        """Size of the feature maps on each spatial axis."""
        sizes = []
        for n, window, stride, dilation in zip(
            self.image, self.window, self.strides, self.dilation, strict=True
        ):
            reach = 0
            if self.padding == "valid":
                reach = (window - 1) * dilation
            sizes.append(None if n is None else -(-(n - reach) // stride))
        return tuple(sizes)

    @property
    def multiplications(self) -> int:
        """Number of multiplications of the direct algorithm, in any pass.

        An unknown size counts as 1.
        """
        sizes = (*self.output, self.batch)
        return (
            math.prod(1 if n is None else n for n in sizes)
            * math.prod(self.window)
            * self.channels
            * self.filters
        )


class Algorithm(abc.ABC):
    """One way to compute the passes of a convolution.

    Tensors are channels last: `x` is `(batch, *image, channels)`, `kernel` is
    `(*window, channels, filters)`, and `dy`, the gradient for the feature maps,
    is `(batch, *output, filters)`. An algorithm is only asked for passes that
    it does not refuse.
    """

    # The name in arguments and caches; a tile size follows a colon, as in
    # "winograd:4".
    name: str

    @abc.abstractmethod
    def refuses(self, geometry: Geometry, which: str) -> str | None:
        """The reason why it does not compute this pass; None if it does."""

    @abc.abstractmethod
    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        """The feature maps, `(batch, *output, filters)`.

        Args:
            x: The input.
            kernel: The kernel.
            geometry: Shape of the convolution.
            epilogue: A bias and `relu`, at most. If the kernel is to be
                remembered, tensors computed from it alone are kept, if there
                are any; that takes memory.
        """

    @abc.abstractmethod
    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        """The gradient for `x`.

        Args:
            dy: The gradient for the feature maps.
            kernel: The kernel.
            geometry: Shape of the convolution.
            input_shape: Shape of `x`, an integer tensor or a list.
        """

    @abc.abstractmethod
    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        """The gradient for the kernel."""

    @abc.abstractmethod
    def multiplications(self, geometry: Geometry, which: str) -> int:
        """Number of multiplications of a pass, transforms included."""

    @abc.abstractmethod
    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        """Bytes that a pass needs beside its arguments and its result.

        Args:
            geometry: Shape of the convolution.
            which: Name of the pass.
            on: Processor that computes it; None for this process'.
        """
