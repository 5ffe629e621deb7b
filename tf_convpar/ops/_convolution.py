"""Convolutions for inference: products by kernels that stay."""

from typing import Any

import tensorflow as tf

from . import _library
from ._activated import passed_back
from ._activations import ACTIVATIONS
from ._devices import same_device


def convolution(
    images: tf.Tensor,
    kernel: tf.Tensor,
    scale: tf.Tensor | None = None,
    offset: tf.Tensor | None = None,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
    *,
    stride: int = 1,
    padding: str = "valid",
    remember: bool = False,
    native: bool | None = None,
) -> tf.Tensor:
    """A convolution on two axes, and what follows it, in one pass.

    ```python
    y = convolution(x, kernel, scale, offset, "relu", remember=True)
    ```

    The compiled op multiplies by panels of the kernel, and scales what it has
    made before it is written. In a graph it may keep the panels: where few
    pixels pass through a kernel, arranging it takes as long as multiplying.

    Args:
        images: Images `(batch, height, width, channels)`.
        kernel: Kernel `(*window, channels, filters)`.
        scale: A factor for each filter; None for none.
        offset: A summand for each filter; None for none.
        activation: `"linear"`, `"relu"`, `"relu6"` or `"silu"`.
        summand: What is added before the activation, of the shape of the
            feature maps; None for nothing.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        remember: Whether the kernel is likely to be the same at the next call.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The feature maps `(batch, new_height, new_width, filters)`.
    """
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        none = tf.zeros([0])
        return _library.module().tf_convpar_convolution(
            images=images,
            kernel=kernel,
            scale=none if scale is None else scale,
            offset=none if offset is None else offset,
            summand=none if summand is None else summand,
            stride=stride,
            padding=padding.upper(),
            activation=activation,
            remember=remember,
        )
    maps = tf.nn.conv2d(images, kernel, stride, padding.upper())
    maps = maps if scale is None else maps * scale
    maps = maps if offset is None else maps + offset
    maps = maps if summand is None else maps + summand
    return ACTIVATIONS[activation].value(maps)


@tf.RegisterGradient("TfConvpar>Convolution")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """What the activation was given is computed again."""
    images, kernel, *others = op.inputs
    # As it was called: an input of no values is none.
    scale, offset, summand = (None if _is_none(x) else x for x in others)
    activation = op.get_attr("activation").decode()
    stride = op.get_attr("stride")
    padding = op.get_attr("padding").decode()
    moves: dict[str, Any] = {
        "strides": [1, stride, stride, 1],
        "padding": padding,
    }
    with same_device(op.outputs[0].device):
        if activation != "linear":
            given = convolution(
                *(images, kernel, scale, offset, "linear", summand),
                stride=stride,
                padding=padding.lower(),
            )
            upstream = passed_back(upstream, given, activation)
        by_kernel = tf.raw_ops.Conv2DBackpropFilter(
            input=images,
            filter_sizes=tf.shape(kernel),
            out_backprop=upstream,
            **moves,
        )
        axes = [0, 1, 2]
        none = tf.zeros([0])
        by_summand = none if summand is None else upstream
        by_offset = none if offset is None else tf.reduce_sum(upstream, axes)
        by_scale = none
        if scale is not None:
            by_scale = tf.reduce_sum(by_kernel * kernel, axes)
            by_kernel, upstream = by_kernel * scale, upstream * scale
        by_images = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(images),
            filter=kernel,
            out_backprop=upstream,
            **moves,
        )
        return [by_images, by_kernel, by_scale, by_offset, by_summand]


def _is_none(x: tf.Tensor) -> bool:
    return bool(x.shape.rank == 1 and x.shape[0] == 0)
