"""`SeparableConvParallel1D`, `SeparableConvParallel2D`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import convolve
from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channel_scaling import completed
from tf_convpar.layers._channels import channel_axis
from tf_convpar.layers._channels import channels
from tf_convpar.layers._depthwise import DepthwiseStage
from tf_convpar.layers._depthwise import maps_of_channels
from tf_convpar.layers._split import Split
from tf_convpar.layers._stage import Part
from tf_convpar.layers._stage import Stage
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.plans import whole_shares


class PointwiseStage(Stage):
    """A convolution of one pixel, which ends a separable one."""

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        part: Part,
        epilogue: Epilogue | None,
        zeros: Sequence[int],
    ) -> tf.Tensor:
        """Computes it by the layer's algorithm."""
        return convolve(
            x,
            kernel,
            self._windows(part.channels_last),
            completed(epilogue or NOTHING, bias),
            algorithm=self.algorithm_on(part.device),
            device=part.device,
        )

    def is_of_keras(self, device: str) -> bool:
        """Whether Keras computes the layer: all algorithms but one do."""
        return self.algorithm_on(device) != "auto"

    def source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        """The input, and a whole epilogue where that is one pass."""
        windows = self._windows(self.layer.data_format == "channels_last")
        return self.source_in_one_pass(inputs, device, kernel, windows)

    def factors_shape(self, kernel: tf.Tensor) -> list[int]:
        """One factor for each filter."""
        return list(kernel.shape[-1:])

    def _windows(self, channels_last: bool) -> Windows:
        ones = [1] * self.layer.rank
        return Windows(ones, dilation_rate=ones, channels_last=channels_last)


class Separable(ConvParallel):
    """A depthwise convolution by channels, then one of one pixel by filters.

    Between the two, each device sends its channels to the others.
    """

    _cut_axes = {"depthwise_kernel": -2, "pointwise_kernel": -1, "bias": -1}
    # Layout of the input's channels.
    _depthwise_layout: Layout | None

    def spread(self, *args: Any, **kwargs: Any) -> None:
        """Sets the attributes that it has beside its Keras twin."""
        super().spread(*args, **kwargs)
        self._depthwise_layout = None

    def lay_out(
        self,
        split: Split,
        devices: Sequence[str],
        owner: str,
        input_shape: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Settles the layouts of weights and samples."""
        super().lay_out(split, devices, owner, input_shape, *args, **kwargs)
        if self._layout is not None and self._depthwise_layout is None:
            self._depthwise_layout = _in_proportion(
                self._layout, channels(self, input_shape)
            )

    def _layout_by_filters(
        self,
        by_shards: Layout | None,
        input_shape: Any,
        incoming: AnyLayout | None,
    ) -> Layout | None:
        if (
            by_shards is not None
            and isinstance(incoming, Layout)
            and incoming.axis == channel_axis(self)
        ):
            # Channels stay where the layer before left them.
            self._depthwise_layout = dataclasses.replace(incoming, axis=-1)
        return by_shards

    def _layout_of(self, name: str | None, shape: Any) -> Layout | None:
        if name == "depthwise_kernel" and self._depthwise_layout is not None:
            return dataclasses.replace(
                self._depthwise_layout, axis=-2, wire=None
            )
        return super()._layout_of(name, shape)

    def stages(self) -> list[Stage]:
        """The depthwise convolution, then that of one pixel."""
        return [
            DepthwiseStage(
                self, self._depthwise_layout, "depthwise_kernel", has_bias=False
            ),
            PointwiseStage(self, "pointwise_kernel"),
        ]

    def moves(
        self, input_shape: Sequence[int], input_place: Place, before: bool
    ) -> list[Move]:
        """The tensors that a call sends, also the maps between its two parts.

        Arguments and result are those of `ConvParallel.moves`.
        """
        moves = super().moves(input_shape, input_place, before)
        if self._samples is not None:
            return moves
        depthwise: Any = self._depthwise_layout
        place = maps_of_channels(self, depthwise)
        shape = list(self.compute_output_shape(input_shape))
        shape[place.axis] = place.total
        learns = before or bool(self.trainable_weights)
        pointwise: Any = self._layout
        return [
            *moves,
            dataclasses.replace(
                moves[0],
                shape=tuple(shape),
                place=place,
                wanted=pointwise.devices,
                returns=learns,
            ),
        ]


def _in_proportion(layout: Layout, total: int) -> Layout:
    """The layout of `total` channels in about the proportions of `layout`."""
    counts = whole_shares(layout.sizes, total, len(layout.sizes))
    placed = [(d, n) for d, n in zip(layout.devices, counts, strict=True) if n]
    devices, sizes = zip(*placed, strict=True)
    return dataclasses.replace(layout, devices=devices, sizes=sizes)


@keras.saving.register_keras_serializable(
    "tf_convpar", "SeparableConvParallel1D"
)
class SeparableConv1D(Separable, keras.layers.SeparableConv1D):
    """`keras.layers.SeparableConv1D` with its kernels spread over devices.

    ```python
    layer = convpar.SeparableConvParallel1D(64, 7, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.SeparableConv1D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    `shards` refer to `filters`. Channels of the depthwise part are given out in
    proportion. The depthwise part is direct whatever the algorithm.

    Input shape: `(batch, steps, channels)`, or with
    `data_format="channels_first"` `(batch, channels, steps)`.

    Raises:
        ValueError: `SeparableConv1D` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable(
    "tf_convpar", "SeparableConvParallel2D"
)
class SeparableConv2D(Separable, keras.layers.SeparableConv2D):
    """`keras.layers.SeparableConv2D` with its kernels spread over devices.

    ```python
    layer = convpar.SeparableConvParallel2D(64, 3, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.SeparableConv2D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    `shards` refer to `filters`. Channels of the depthwise part are given out in
    proportion. The depthwise part is direct whatever the algorithm.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: `SeparableConv2D` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """
