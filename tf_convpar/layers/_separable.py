"""`SeparableConvParallel1D`, `SeparableConvParallel2D`."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.algorithms import convolve
from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._depthwise import channels
from tf_convpar.layers._depthwise import depthwise
from tf_convpar.layers._shards import resolve_shards
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import apart
from tf_convpar.placement import everywhere


class Separable(ConvParallel):
    """A depthwise convolution by channels, then one of one pixel by filters.

    In between, each device sends its channels to the others.
    """

    _cut_axes = {"depthwise_kernel": -2, "pointwise_kernel": -1, "bias": -1}
    # Of the input's channels.
    _depthwise_layout: Layout | None

    def spread(self, *args: Any, **kwargs: Any) -> None:
        """Sets what a parallel layer has beside its Keras twin."""
        super().spread(*args, **kwargs)
        self._depthwise_layout = None

    def _lay_out(self, input_shape: Any) -> None:
        super()._lay_out(input_shape)
        if self._layout is not None and self._depthwise_layout is None:
            self._depthwise_layout = _in_proportion(
                self._layout, channels(self, input_shape)
            )

    def _layout_in_region(
        self, input_shape: Any, incoming: Layout | None
    ) -> Layout | None:
        layout = super()._layout_in_region(input_shape, incoming)
        if layout is None or incoming is None:
            return layout
        if incoming.axis == self._channel_axis():
            # Channels lie where the layer before left them.
            self._depthwise_layout = dataclasses.replace(incoming, axis=-1)
        return layout

    def _layout_of(self, name: str | None, shape: Any) -> Layout | None:
        if name == "depthwise_kernel" and self._depthwise_layout is not None:
            return dataclasses.replace(
                self._depthwise_layout, axis=-2, wire=None
            )
        return super()._layout_of(name, shape)

    def _maps(self, inputs: Any) -> ShardedTensor:
        wire = self._wire_dtype_for(inputs.dtype).name
        layout = dataclasses.replace(
            self.depthwise_kernel._value.layout,
            axis=self._channel_axis(),
            wire=wire,
        )
        own = apart(inputs, layout)
        maps = self._on_shards(
            self._depthwise, own.shards, ["depthwise_kernel"]
        )
        layout = self.pointwise_kernel._value.layout
        copies = everywhere(maps, layout.devices, layout.owner, wire)
        return self._on_shards(
            self._pointwise, copies, self._with_bias("pointwise_kernel")
        )

    def _depthwise(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        channels_last: bool,
        device: str,
        first: int,
    ) -> tf.Tensor:
        return depthwise(self, x, kernel, channels_last)

    def _pointwise(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        *bias: tf.Tensor,
        channels_last: bool,
        device: str,
        first: int,
    ) -> tf.Tensor:
        return convolve(
            x,
            kernel,
            strides=[1] * self.rank,
            padding="valid",
            dilation_rate=[1] * self.rank,
            channels_last=channels_last,
            algorithm=self._algorithm_on(device),
            bias=bias[0] if bias else None,
            device=device,
        )


def _in_proportion(layout: Layout, total: int) -> Layout:
    """The same devices with shares of another number, as near as can be."""
    counts = resolve_shards(layout.sizes, total, len(layout.sizes))
    held = [(d, n) for d, n in zip(layout.devices, counts, strict=True) if n]
    devices, sizes = zip(*held, strict=True)
    return dataclasses.replace(layout, devices=devices, sizes=sizes)


@keras.saving.register_keras_serializable(
    "tf_convpar", "SeparableConvParallel1D"
)
class SeparableConv1D(Separable, keras.layers.SeparableConv1D):
    """`keras.layers.SeparableConv1D` with its kernels spread over devices.

    ```python
    layer = convpar.SeparableConvParallel1D(64, 7, shards=(3, 1))
    ```

    Every argument of `keras.layers.SeparableConv1D`, then `shards`,
    `wire_dtype` and `algorithm` as of `ConvParallel2D`. `shards` refer to
    `filters`; channels of the depthwise part are given out in proportion. The
    depthwise part is direct whatever the algorithm.

    Input shape: `(batch, steps, channels)`, or with
    `data_format="channels_first"` `(batch, channels, steps)`.

    Raises:
        ValueError: As `SeparableConv1D`; `shards` do not fit `filters`; an
            unknown `wire_dtype` or `algorithm`.
    """


@keras.saving.register_keras_serializable(
    "tf_convpar", "SeparableConvParallel2D"
)
class SeparableConv2D(Separable, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D` with its kernels spread over devices.

    ```python
    layer = convpar.SeparableConvParallel2D(64, 3, shards=(3, 1))
    ```

    Every argument of `keras.layers.SeparableConv2D`, then `shards`,
    `wire_dtype` and `algorithm` as of `ConvParallel2D`. `shards` refer to
    `filters`; channels of the depthwise part are given out in proportion. The
    depthwise part is direct whatever the algorithm.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: As `SeparableConv2D`; `shards` do not fit `filters`; an
            unknown `wire_dtype` or `algorithm`.
    """
