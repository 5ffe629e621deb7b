"""Depthwise convolutions and their kernel gradient, in vectors of channels."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activated import passed_back
from ._activations import ACTIVATIONS
from ._devices import same_device


def depthwise(
    images: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor,
    stride: int = 1,
    padding: str = "same",
    zeros: Sequence[int] = (0, 0, 0, 0),
    activation: str = "linear",
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """A depthwise convolution with its bias and what follows it, in one pass.

    ```python
    y = depthwise(x, kernel, bias, activation="relu6")
    ```

    Args:
        images: Images `(batch, height, width, channels)`.
        kernel: A kernel for each channel, `(*window, channels)`.
        bias: A summand for each channel.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        zeros: Zeros above, below, left and right of the image, beside those of
            `padding`.
        activation: `"linear"`, `"relu"`, `"relu6"`, `"silu"` or `"gelu"`.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The feature maps, with as many channels.
    """
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        return _library.module().tf_convpar_depthwise(
            images=images,
            kernel=kernel,
            bias=bias,
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            activation=activation,
        )
    maps = tf.raw_ops.DepthwiseConv2dNative(
        input=padded(images, zeros),
        filter=tf.expand_dims(kernel, -1),
        strides=[1, stride, stride, 1],
        padding=padding.upper(),
    )
    return ACTIVATIONS[activation].value(tf.nn.bias_add(maps, bias))


def depthwise_kernel_gradient(
    images: tf.Tensor,
    gradients: tf.Tensor,
    window: Sequence[int],
    stride: int = 1,
    padding: str = "same",
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """The gradient by the kernel, of one kernel for each channel.

    ```python
    dk = depthwise_kernel_gradient(x, dy, (7, 7))  # (7, 7, channels)
    ```

    TensorFlow's own op has fast loops for windows of 3x3, and copies the image
    once for each pixel of a larger window.

    Args:
        images: Images `(batch, height, width, channels)`.
        gradients: Gradients of the feature maps, with as many channels.
        window: Height and width of the window.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        A tensor `(*window, channels)`.
    """
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        return _library.module().tf_convpar_depthwise_kernel_gradient(
            images=images,
            gradients=gradients,
            window=list(window),
            stride=stride,
            padding=padding.upper(),
        )
    found = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
        input=images,
        filter_sizes=[*window, images.shape[-1], 1],
        out_backprop=gradients,
        strides=[1, stride, stride, 1],
        padding=padding.upper(),
    )
    # TensorFlow writes nothing for an empty batch.
    found = tf.where(tf.size(gradients) > 0, found, tf.zeros_like(found))
    return tf.squeeze(found, -1)


@tf.RegisterGradient("TfConvpar>Depthwise")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """What the activation was given is computed again."""
    images, kernel, bias = op.inputs
    stride, zeros = op.get_attr("stride"), op.get_attr("zeros")
    padding = op.get_attr("padding").decode()
    activation = op.get_attr("activation").decode()
    with same_device(op.outputs[0].device):
        if activation != "linear":
            given = depthwise(
                images, kernel, bias, stride, padding.lower(), zeros
            )
            upstream = passed_back(upstream, given, activation)
        x = padded(images, zeros)
        by_padded = tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
            input_sizes=tf.shape(x),
            filter=tf.expand_dims(kernel, -1),
            out_backprop=upstream,
            strides=[1, stride, stride, 1],
            padding=padding,
        )
        return [
            tf.slice(by_padded, [0, zeros[0], zeros[2], 0], tf.shape(images)),
            depthwise_kernel_gradient(
                x, upstream, kernel.shape[:2], stride, padding.lower()
            ),
            tf.reduce_sum(upstream, [0, 1, 2]),
        ]


def padded(images: tf.Tensor, zeros: Sequence[int]) -> tf.Tensor:
    if not any(zeros):
        return images
    top, bottom, left, right = zeros
    return tf.pad(images, [(0, 0), (top, bottom), (left, right), (0, 0)])


@tf.RegisterGradient("TfConvpar>DepthwiseKernelGradient")
def _gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """It is linear in the images, and in the gradients."""
    images, gradients = op.inputs
    stride = op.get_attr("stride")
    options: dict[str, Any] = {
        "strides": [1, stride, stride, 1],
        "padding": op.get_attr("padding").decode(),
    }
    with same_device(op.outputs[0].device):
        kernel = tf.expand_dims(upstream, -1)
        return [
            tf.raw_ops.DepthwiseConv2dNativeBackpropInput(
                input_sizes=tf.shape(images),
                filter=kernel,
                out_backprop=gradients,
                **options,
            ),
            tf.raw_ops.DepthwiseConv2dNative(
                input=images, filter=kernel, **options
            ),
        ]
