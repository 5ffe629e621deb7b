"""`DepthwiseConvParallel1D`, `DepthwiseConvParallel2D`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from tf_convpar.layers._channels import data_format
from tf_convpar.layers._chief import chief
from tf_convpar.layers._one_device import Stage
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor


class Depthwise(ConvParallel):
    """A depthwise convolution whose devices get their own channels only."""

    _cut_axes = {"kernel": -2, "bias": -1}

    def _channels_to_share(self, input_shape: Sequence[int | None]) -> int:
        return channels(self, input_shape)

    def _layout_by_filters(
        self,
        by_shards: Layout | None,
        input_shape: Any,
        incoming: AnyLayout | None,
    ) -> Layout | None:
        # Channels stay where the layer before left them.
        if (
            isinstance(incoming, Layout)
            and incoming.axis == self._channel_axis()
        ):
            return dataclasses.replace(incoming, axis=-1, wire=self._wire())
        return by_shards

    def _layout_of_maps(self, layout: Layout, input_shape: Any) -> Layout:
        sizes = tuple(self.depth_multiplier * n for n in layout.sizes)
        return dataclasses.replace(
            layout, axis=self._channel_axis(), sizes=sizes
        )

    def _wanted(self) -> Layout:
        layout: Any = self._layout
        return dataclasses.replace(layout, axis=self._channel_axis())

    def _maps(self, inputs: Any) -> ShardedTensor:
        parts = self._arranged(inputs)
        return self._on_shards(self._convolve, parts, self._with_bias())

    def _stages(self) -> list[Stage]:
        return [(self._convolve, self._with_bias())]

    def _factors_shape(self, kernel: tf.Tensor) -> list[int]:
        return list(kernel.shape[-2:])

    def _call_on_chief(self, inputs: tf.Tensor) -> Any:
        return call_on_chief(self, inputs, super()._call_on_chief)

    def _convolve(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        *bias: tf.Tensor,
        channels_last: bool,
        device: str,
        first: int,
        epilogue: ops.Epilogue | None = None,
        zeros: Sequence[int] = (0, 0, 0, 0),
    ) -> tf.Tensor:
        if epilogue is not None:
            return ops.depthwise(
                x,
                kernel[..., 0],
                completed(epilogue, bias),
                self.strides[0],
                self.padding,
                zeros,
            )
        algorithm = self._algorithm_on(device)
        y = depthwise(self, x, kernel, channels_last, algorithm)
        return add_bias(y, bias, channels_last)

    def _source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        auto = self._algorithm_on(device) == "auto"
        if not (auto and is_own_depthwise(inputs, kernel, **_windows(self))):
            return Source(inputs)
        image, zeros = unpadded(inputs)
        return Source(image, zeros, activations=ops.ACTIVATIONS)


def channels(layer: Any, input_shape: Sequence[int | None]) -> int:
    """The number of channels of a layer's input.

    Raises:
        ValueError: The number is unknown.
    """
    axis = -1 if layer.data_format == "channels_last" else 1
    count = input_shape[axis]
    if count is None:
        raise ValueError(
            f"Expected the input of layer '{layer.name}' to have a known "
            f"number of channels. Received: shape {tuple(input_shape)}."
        )
    return count


def call_on_chief(
    layer: Any, inputs: tf.Tensor, keras_call: Callable[[tf.Tensor], Any]
) -> Any:
    """Computes a layer on one device: as Keras does, unless by `"auto"`."""
    device, _ = chief()
    if layer._algorithm_on(device) != "auto":
        return keras_call(inputs)
    return layer._call_on(device, inputs)


def depthwise(
    layer: Any,
    x: tf.Tensor,
    kernel: tf.Tensor,
    channels_last: bool,
    algorithm: str,
) -> tf.Tensor:
    """Computes the depthwise convolution of a Keras layer for some channels."""
    windows = _windows(layer) | {"data_format": data_format(channels_last)}
    return depthwise_conv(x, kernel, algorithm=algorithm, **windows)


def _windows(layer: Any) -> dict[str, Any]:
    """Strides and padding of a layer, for `keras.ops.depthwise_conv`."""
    return {
        "strides": layer.strides,
        "padding": layer.padding,
        "dilation_rate": layer.dilation_rate,
        "data_format": layer.data_format,
    }


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
