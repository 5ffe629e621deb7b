"""The direct algorithm: TensorFlow's own convolution."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    dilation_rate: Sequence[int] = (1, 1),
    groups: int = 1,
    filters: tuple[int, int] | None = None,
    channels_last: bool = True,
) -> tf.Tensor:
    """A convolution with some of a layer's filters.

    ```python
    y = convolve(x, kernel)  # all filters
    y = convolve(  # filters 8 to 15 of 32 in four groups
        x, kernel[..., 8:16], groups=4, filters=(8, 32)
    )
    ```

    Args:
        inputs: `(batch, *spatial, channels)`, or `(batch, channels, *spatial)`
            where `channels_last` is False.
        kernel: `(*window, channels // groups, width)`: the filters wanted,
            which may be any contiguous range of the layer's.
        strides: One per spatial axis.
        padding: `"valid"` or `"same"`.
        dilation_rate: One per spatial axis.
        groups: Groups of the *whole* layer.
        filters: First filter of the range, and the layer's number of filters;
            needed only where `groups` is over 1.
        channels_last: The data format. On a CPU TensorFlow supports no other.

    Returns:
        `(batch, *new_spatial, width)`, or channels first as the inputs are.
    """
    axis = -1 if channels_last else 1
    spatial = {1: "W", 2: "HW", 3: "DHW"}[len(strides)]

    def run(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.convolution(
            inputs,
            kernel,
            strides=list(strides),
            padding=padding.upper(),
            dilations=list(dilation_rate),
            data_format=f"N{spatial}C" if channels_last else f"NC{spatial}",
        )

    if groups == 1:
        return run(inputs, kernel)
    # TensorFlow has no gradient of a grouped convolution on a CPU, and Keras
    # turns to XLA there, which cannot follow a device scope: one convolution
    # for each group that the range touches.
    width = kernel.shape[-1]
    first, total = filters or (0, width)
    per_group = total // groups
    channels = kernel.shape[-2]
    maps = []
    for group in range(first // per_group, -(-(first + width) // per_group)):
        begin = max(group * per_group - first, 0)
        end = min((group + 1) * per_group - first, width)
        own = tf.gather(
            inputs, range(group * channels, (group + 1) * channels), axis=axis
        )
        maps.append(run(own, kernel[..., begin:end]))
    return tf.concat(maps, axis)
