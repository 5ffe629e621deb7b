"""`ConvParallel1DTranspose`, `ConvParallel2DTranspose`, `...3DTranspose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._channels import add_bias
from tf_convpar.layers._channels import data_format
from tf_convpar.layers._stage import Part
from tf_convpar.layers._stage import Stage


class TransposedStage(Stage):
    """A transposed convolution, by the op of Keras."""

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        part: Part,
        *_: Any,
    ) -> tf.Tensor:
        """Computes it as Keras does."""
        layer = self.layer
        y = keras.ops.conv_transpose(
            x,
            kernel,
            strides=list(layer.strides),
            padding=layer.padding,
            output_padding=layer.output_padding,
            dilation_rate=layer.dilation_rate,
            data_format=data_format(part.channels_last),
        )
        return add_bias(y, bias, part.channels_last)


class Transposed(ConvParallel):
    """A transposed convolution, whose kernels have filters on another axis."""

    _cut_axes = {"kernel": -2, "bias": -1}

    def stages(self) -> list[Stage]:
        """The convolution."""
        return [TransposedStage(self)]


@keras.saving.register_keras_serializable(
    "tf_convpar", "ConvParallel1DTranspose"
)
class Conv1DTranspose(Transposed, keras.layers.Conv1DTranspose):
    """`keras.layers.Conv1DTranspose` with its kernels spread over devices.

    ```python
    layer = convpar.ConvParallel1DTranspose(32, 4, strides=2, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.Conv1DTranspose`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    Every algorithm is direct here.

    Input shape: `(batch, steps, channels)`, or with
    `data_format="channels_first"` `(batch, channels, steps)`.

    Raises:
        ValueError: `Conv1DTranspose` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable(
    "tf_convpar", "ConvParallel2DTranspose"
)
class Conv2DTranspose(Transposed, keras.layers.Conv2DTranspose):
    """`keras.layers.Conv2DTranspose` with its kernels spread over devices.

    ```python
    layer = convpar.ConvParallel2DTranspose(64, 2, strides=2, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.Conv2DTranspose`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    Every algorithm is direct here.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: `Conv2DTranspose` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable(
    "tf_convpar", "ConvParallel3DTranspose"
)
class Conv3DTranspose(Transposed, keras.layers.Conv3DTranspose):
    """`keras.layers.Conv3DTranspose` with its kernels spread over devices.

    ```python
    layer = convpar.ConvParallel3DTranspose(32, 2, strides=2, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.Conv3DTranspose`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.
    Every algorithm is direct here.

    Input shape: `(batch, depth, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, depth, height, width)`.

    Raises:
        ValueError: `Conv3DTranspose` refuses an argument; `shards` are not
            valid; or `wire_dtype`, `algorithm` or `split` is unknown.
    """
