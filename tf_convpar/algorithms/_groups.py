"""Convolutions in groups, of which a device may have a part.

TensorFlow has no gradient of a grouped convolution on a CPU, and Keras turns to
XLA there, which cannot follow a device scope. Groups of one channel, as in
ConvNeXt, are a depthwise convolution, for which TensorFlow has all gradients.
Of other groups, each is a convolution of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.ops import Epilogue

# Pixels of a window from which on the op for its gradient is faster.
_LARGE_WINDOW = 25

Run = Callable[[tf.Tensor, tf.Tensor, Epilogue], tf.Tensor]


def by_group(
    run: Run,
    x: tf.Tensor,
    kernel: tf.Tensor,
    epilogue: Epilogue,
    per_group: int,
    first: int,
    axis: int,
) -> tf.Tensor:
    """Feature maps of a range of filters, one convolution for each group.

    Args:
        run: A convolution without groups. It is called with the channels, the
            kernel and the epilogue of each group that the range touches.
        x: Input with the channels of all groups.
        kernel: Kernel of the range, `(*window, channels of a group, width)`.
        epilogue: A bias and an activation, at most.
        per_group: Number of filters of a whole group.
        first: Number of the layer's filter with which the range begins.
        axis: Axis of `x` that holds the channels.
    """
    width, channels = kernel.shape[-1], kernel.shape[-2]
    maps = []
    for group in range(first // per_group, -(-(first + width) // per_group)):
        begin = max(group * per_group - first, 0)
        end = min((group + 1) * per_group - first, width)
        image = channels_of(x, group * channels, channels, axis)
        part = epilogue.with_tensors(
            [bias[begin:end] for bias in epilogue.tensors()]
        )
        maps.append(run(image, kernel[..., begin:end], part))
    return tf.concat(maps, axis)


def is_depthwise(
    kernel: tf.Tensor,
    per_group: int,
    first: int,
    strides: Sequence[int],
    dilation: Sequence[int],
) -> bool:
    """Whether one depthwise convolution of TensorFlow computes the range.

    The range must consist of whole groups of one channel. TensorFlow's
    depthwise convolutions have one or two dimensions, equal strides on all
    axes, and dilation only without strides.
    """
    window, (channels, width) = kernel.shape[:-2], kernel.shape[-2:]
    whole_groups = first % per_group == 0 and width % per_group == 0
    supported = len(window) <= 2 and len(set(strides)) == 1
    supported = supported and (max(strides) == 1 or max(dilation) == 1)
    return bool(channels == 1 and whole_groups and supported)


def depthwise(
    x: tf.Tensor,
    kernel: tf.Tensor,
    per_group: int,
    first: int,
    axis: int,
    **kwargs: Any,
) -> tf.Tensor:
    """`by_group` in one operation, for ranges that are `is_depthwise`."""
    width = kernel.shape[-1]
    count = width // per_group
    image = channels_of(x, first // per_group, count, axis)
    kernel = tf.reshape(kernel, [*kernel.shape[:-2], count, per_group])
    return depthwise_conv(image, kernel, **kwargs)


def depthwise_conv(
    x: tf.Tensor,
    kernel: tf.Tensor,
    *,
    algorithm: str = "direct",
    **kwargs: Any,
) -> tf.Tensor:
    """`keras.ops.depthwise_conv`, with a kernel gradient of 0 for no samples.

    TensorFlow does not write that gradient where the batch is empty, so it
    holds whatever was in memory. Devices that share a small batch may have no
    sample of it.

    Args:
        x: Images.
        kernel: Kernel, `(*window, channels, multiplier)`.
        algorithm: With `"auto"` this package's ops compute the passes at which
            they are faster.
        **kwargs: As for `keras.ops.depthwise_conv`.
    """
    if not x.shape[0]:
        kernel = _with_gradient_if(kernel, tf.shape(x)[0] > 0)
    if algorithm == "auto" and is_own_depthwise(x, kernel, **kwargs):
        stride = kwargs["strides"][0]
        large = math.prod(kernel.shape[:2]) >= _LARGE_WINDOW
        if large or stride == 1:
            return _by_own_ops(x, kernel, stride, kwargs["padding"], large)
    if kernel.shape[-2] == 1:
        # Of one channel it is a convolution. TensorFlow 2.21 with oneDNN takes
        # the one without a bias for the other with one, if both are in a
        # process and their window is one wide, and ends with an error.
        return keras.ops.conv(x, kernel, **kwargs)
    return keras.ops.depthwise_conv(x, kernel, **kwargs)


def is_own_depthwise(
    x: tf.Tensor,
    kernel: tf.Tensor,
    strides: Sequence[int],
    padding: str,
    dilation_rate: Any,
    data_format: str,
) -> bool:
    """Whether this package's ops compute a depthwise convolution.

    Without strides, forward and the input gradient take 0.3 to 0.75 of
    TensorFlow's time, forward with strides 0.8 to 1.3. The kernel gradient
    of windows of 5x5 and 7x7 takes 0.3 to 0.65 of it in the layers of three
    models, but more where a large window leaves one feature map; TensorFlow
    has loops of its own for 3x3 (`benchmarks/depthwise`).
    """
    two_axes = x.shape.rank == 4 and data_format == "channels_last"
    alike = len(set(strides)) == 1 and set(_as_tuple(dilation_rate)) == {1}
    single_filter = (
        kernel.shape[-1] == 1 and x.dtype == kernel.dtype == tf.float32
    )
    return bool(two_axes and alike and single_filter and ops.load())


def _as_tuple(rate: Any) -> Sequence[int]:
    return (rate,) if isinstance(rate, int) else tuple(rate)


def _by_own_ops(
    x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: str, large: bool
) -> tf.Tensor:
    """A convolution by this package's ops, where they are the faster ones."""
    options: dict[str, Any] = {
        "strides": [1, stride, stride, 1],
        "padding": padding.upper(),
    }

    @tf.custom_gradient
    def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        # One for both directions.
        zero_bias = Epilogue(bias=tf.zeros(kernel.shape[2], kernel.dtype))
        y = ops.depthwise(x, kernel[..., 0], zero_bias, stride, padding)

        def gradient(dy: tf.Tensor) -> list[tf.Tensor]:
            if large:
                by_kernel = ops.depthwise_kernel_gradient(
                    x, dy, kernel.shape[:2], stride, padding
                )
                dk = tf.expand_dims(by_kernel, -1)
            else:
                dk = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
                    input=x,
                    filter_sizes=kernel.shape,
                    out_backprop=dy,
                    **options,
                )
            if stride == 1:
                # The same convolution, with the window turned around.
                turned = kernel[::-1, ::-1, :, 0]
                zeros = _zeros_around(kernel.shape[:2], padding)
                dx = ops.depthwise(dy, turned, zero_bias, 1, "valid", zeros)
            else:
                dx = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                    input_sizes=tf.shape(x),
                    filter=kernel,
                    out_backprop=dy,
                    **options,
                )
            return [dx, dk]

        return y, gradient

    return run(x, kernel)


def _zeros_around(window: Sequence[int], padding: str) -> list[int]:
    """Zeros around gradients that make the input gradient a convolution."""
    zeros = []
    for size in window:
        before = (size - 1) // 2 if padding == "same" else 0
        after = size - 1 - before if padding == "same" else 0
        zeros += [size - 1 - before, size - 1 - after]
    return zeros


def _with_gradient_if(kernel: tf.Tensor, learns: tf.Tensor) -> tf.Tensor:
    """The kernel, with a gradient that is 0 unless `learns` is true."""

    @tf.custom_gradient
    def same(kernel: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.where(learns, dy, tf.zeros_like(dy))

        return tf.identity(kernel), gradient

    return same(kernel)


def channels_of(x: tf.Tensor, first: int, count: int, axis: int) -> tf.Tensor:
    """The `count` channels of `x` from `first` on."""
    begin, size = [0] * x.shape.rank, [-1] * x.shape.rank
    begin[axis], size[axis] = first, count
    return tf.slice(x, begin, size)
