"""`DepthwiseConvParallel1D`, `DepthwiseConvParallel2D`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import depthwise_conv
from tf_convpar.algorithms import is_own_depthwise
from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channel_scaling import completed
from tf_convpar.layers._channel_scaling import unpadded
from tf_convpar.layers._channels import add_bias
from tf_convpar.layers._channels import channel_axis
from tf_convpar.layers._channels import channels
from tf_convpar.layers._channels import data_format
from tf_convpar.layers._stage import Part
from tf_convpar.layers._stage import Stage
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout


class DepthwiseStage(Stage):
    """A depthwise convolution, whose devices get their own channels only.

    Args:
        layer: The parallel layer.
        layout: Layout of its input's channels; None if all are on the chief.
        kernel: Name of its kernel.
        has_bias: As for `Stage`.
    """

    def __init__(
        self,
        layer: Any,
        layout: Layout | None,
        kernel: str = "kernel",
        has_bias: bool = True,
    ) -> None:
        super().__init__(layer, kernel, has_bias)
        self._layout = layout

    def wanted(self) -> Layout:
        """Each device's own channels."""
        layout: Any = self._layout
        return dataclasses.replace(layout, axis=channel_axis(self.layer))

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        part: Part,
        epilogue: ops.Epilogue | None,
        zeros: Sequence[int],
    ) -> tf.Tensor:
        """Computes it, by this package's op if there is an epilogue."""
        if epilogue is not None:
            return ops.depthwise(
                x,
                kernel[..., 0],
                completed(epilogue, bias),
                self.layer.strides[0],
                self.layer.padding,
                zeros,
            )
        y = depthwise_conv(
            x,
            kernel,
            algorithm=self.algorithm_on(part.device),
            **self._windows(part.channels_last),
        )
        return add_bias(y, bias, part.channels_last)

    def is_of_keras(self, device: str) -> bool:
        """Whether Keras computes it: its algorithms are direct but for one."""
        return self.algorithm_on(device) != "auto"

    def source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        """The input without zeros around it, if this package's op takes it."""
        windows = self._windows(self.layer.data_format == "channels_last")
        auto = self.algorithm_on(device) == "auto"
        if not (auto and is_own_depthwise(inputs, kernel, **windows)):
            return Source(inputs)
        image, zeros = unpadded(inputs)
        return Source(image, zeros, activations=ops.ACTIVATIONS)

    def factors_shape(self, kernel: tf.Tensor) -> list[int]:
        """One factor for each feature map of each channel."""
        return list(kernel.shape[-2:])

    def _windows(self, channels_last: bool) -> dict[str, Any]:
        """Strides and padding, for `keras.ops.depthwise_conv`."""
        return {
            "strides": self.layer.strides,
            "padding": self.layer.padding,
            "dilation_rate": self.layer.dilation_rate,
            "data_format": data_format(channels_last),
        }


def maps_of_channels(layer: Any, layout: Layout) -> Layout:
    """The layout of a depthwise convolution's maps, by that of its input."""
    sizes = tuple(layer.depth_multiplier * n for n in layout.sizes)
    return dataclasses.replace(layout, axis=channel_axis(layer), sizes=sizes)


class Depthwise(ConvParallel):
    """A depthwise convolution, whose shards are of the input's channels."""

    _cut_axes = {"kernel": -2, "bias": -1}

    def stages(self) -> list[Stage]:
        """The convolution."""
        return [DepthwiseStage(self, self._layout)]

    def _channels_to_share(self, input_shape: Sequence[int | None]) -> int:
        return channels(self, input_shape)

    def _layout_by_filters(
        self,
        by_shards: Layout | None,
        input_shape: Any,
        incoming: AnyLayout | None,
    ) -> Layout | None:
        # Channels stay where the layer before left them.
        if isinstance(incoming, Layout) and incoming.axis == channel_axis(self):
            return dataclasses.replace(incoming, axis=-1, wire=self._wire())
        return by_shards

    def _layout_of_maps(self, layout: Layout, input_shape: Any) -> Layout:
        return maps_of_channels(self, layout)


@keras.saving.register_keras_serializable(
    "tf_convpar", "DepthwiseConvParallel1D"
)
class DepthwiseConv1D(Depthwise, keras.layers.DepthwiseConv1D):
    """`keras.layers.DepthwiseConv1D`, its channels spread over devices.

    ```python
    layer = convpar.DepthwiseConvParallel1D(7, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.DepthwiseConv1D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    Here `shards` refer to channels of the input, and every algorithm is
    direct.

    Input shape: `(batch, steps, channels)`, or with
    `data_format="channels_first"` `(batch, channels, steps)`.

    Raises:
        ValueError: `DepthwiseConv1D` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable(
    "tf_convpar", "DepthwiseConvParallel2D"
)
class DepthwiseConv2D(Depthwise, keras.layers.DepthwiseConv2D):
    """`keras.layers.DepthwiseConv2D`, its channels spread over devices.

    ```python
    layer = convpar.DepthwiseConvParallel2D(3, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.DepthwiseConv2D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    Here `shards` refer to channels of the input, and every algorithm is
    direct; with `"auto"` the kernel gradient of larger windows is an op of this
    package's.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: `DepthwiseConv2D` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """
