"""Depthwise convolutions and their kernel gradient, in vectors of channels."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activation_gradients import passed_back
from ._devices import same_device
from ._epilogue import NOTHING
from ._epilogue import Epilogue
from ._windows import Convolution


def depthwise(
    images: tf.Tensor,
    kernel: tf.Tensor,
    epilogue: Epilogue = NOTHING,
    stride: int = 1,
    padding: str = "same",
    zeros: Sequence[int] = (0, 0, 0, 0),
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """A depthwise convolution and its epilogue, in one pass.

    ```python
    y = depthwise(x, kernel, Epilogue(bias=bias, activation="relu6"))
    ```

    Args:
        images: Images `(batch, height, width, channels)`.
        kernel: A kernel for each channel, `(*window, channels)`.
        epilogue: A bias and an activation, at most.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        zeros: Zeros above, below, left and right of the image, beside those of
            `padding`.
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
        bias = epilogue.bias
        return _library.module().tf_convpar_depthwise(
            images=images,
            kernel=kernel,
            bias=tf.zeros(kernel.shape[-1]) if bias is None else bias,
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            activation=epilogue.activation,
        )
    tensorflow_convolution = Convolution(
        stride, padding.upper(), depthwise=True
    )
    maps = tensorflow_convolution.maps(
        padded(images, zeros), tf.convert_to_tensor(kernel)
    )
    return epilogue.applied(maps)


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
    tensorflow_convolution = Convolution(
        stride, padding.upper(), depthwise=True
    )
    kernel = tf.zeros([*window, images.shape[-1]], images.dtype)
    return tensorflow_convolution.by_kernel(
        images, kernel, tf.convert_to_tensor(gradients)
    )


@tf.RegisterGradient("TfConvpar>Depthwise")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """Gradients; the input of the activation is recomputed."""
    images, kernel, bias = op.inputs
    stride, zeros = op.get_attr("stride"), op.get_attr("zeros")
    padding = op.get_attr("padding").decode()
    activation = op.get_attr("activation").decode()
    with same_device(op.outputs[0].device):
        if activation != "linear":
            before = depthwise(
                *(images, kernel, Epilogue(bias=bias)),
                *(stride, padding.lower(), zeros),
            )
            upstream = passed_back(upstream, before, activation)
        x = padded(images, zeros)
        tensorflow_convolution = Convolution(stride, padding, depthwise=True)
        by_padded = tensorflow_convolution.by_images(x, kernel, upstream)
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
    """Gradients of a gradient that is linear in images and in gradients."""
    images, gradients = op.inputs
    tensorflow_convolution = Convolution(
        op.get_attr("stride"), op.get_attr("padding").decode(), depthwise=True
    )
    with same_device(op.outputs[0].device):
        return [
            tensorflow_convolution.by_images(images, upstream, gradients),
            tensorflow_convolution.maps(images, upstream),
        ]
