"""The channel axis, which Keras has either last or first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def channel_axis(layer: Any) -> int:
    """The channel axis of a layer's feature maps, negative as in layouts."""
    if layer.data_format == "channels_last":
        return -1
    return -1 - int(layer.rank)


def channels(layer: Any, input_shape: Sequence[int | None]) -> int:
    """The number of channels of a layer's input.

    Raises:
        ValueError: The number is unknown.
    """
    count = input_shape[channel_axis(layer)]
    if count is None:
        raise ValueError(
            f"Expected the input of layer '{layer.name}' to have a known "
            f"number of channels. Received: shape {tuple(input_shape)}."
        )
    return count


def data_format(channels_last: bool) -> str:
    """Keras' name of the data format."""
    return "channels_last" if channels_last else "channels_first"


def add_bias(y: tf.Tensor, bias: Sequence[tf.Tensor], last: bool) -> tf.Tensor:
    """Adds the bias, if there is one, along the channel axis."""
    if not bias:
        return y
    if last:
        # TensorFlow fuses this op with the convolution.
        return tf.nn.bias_add(y, bias[0])
    return y + tf.reshape(bias[0], [-1] + [1] * (y.shape.rank - 2))


def move_channels(x: tf.Tensor, source: int, target: int) -> tf.Tensor:
    """Moves the channel axis from `source` to `target`."""
    axes = list(range(x.shape.rank))
    axes.insert(target % len(axes), axes.pop(source))
    return tf.transpose(x, axes)
