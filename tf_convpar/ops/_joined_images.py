"""Images that a convolution joins and scales in its own pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from ._activations import ACTIVATIONS


class JoinedImages(NamedTuple):
    """Images in parts, with the scaling and activation of their channels.

    ```python
    images = ops.JoinedImages([x, new], scale, offset, "relu")
    y = ops.convolution(None, kernel, ops.Epilogue(joined=images))
    ```

    Attributes:
        parts: Images `(batch, height, width, channels)` of one size, which are
            joined along their channels.
        scale: A factor for each channel, `(channels,)`, or for each channel of
            each image, `(batch, channels)`; None for none.
        offset: A summand for each channel, `(channels,)`; None for none.
        activation: Activation of the scaled images, as for `convolution`.
        epsilon: Summand of variances, where the channels of each pixel are
            normalized before they are scaled; None where they are not.
    """

    parts: Sequence[tf.Tensor]
    scale: tf.Tensor | None = None
    offset: tf.Tensor | None = None
    activation: str = "linear"
    epsilon: float | None = None

    def tensor(self) -> tf.Tensor:
        """The images as one tensor, by TensorFlow's ops."""
        x = self.parts[0] if len(self.parts) == 1 else tf.concat(self.parts, -1)
        if self.epsilon is not None:
            mean, variance = tf.nn.moments(x, [-1], keepdims=True)
            x = (x - mean) * tf.math.rsqrt(variance + self.epsilon)
        if self.scale is not None:
            scale = tf.convert_to_tensor(self.scale)
            per_image = scale.shape.rank > 1
            x *= scale[:, tf.newaxis, tf.newaxis] if per_image else scale
        if self.offset is not None:
            x += self.offset
        return ACTIVATIONS[self.activation].value(x)
