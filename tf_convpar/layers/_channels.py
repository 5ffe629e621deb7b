"""The channel axis, which Keras has either last or first."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


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
