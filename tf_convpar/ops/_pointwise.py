"""Pointwise convolutions for inference: products by kernels that stay."""

from typing import Any

import tensorflow as tf

from . import _library
from ._activated import passed_back
from ._activations import ACTIVATIONS
from ._devices import same_device


def pointwise(
    images: tf.Tensor,
    kernel: tf.Tensor,
    scale: tf.Tensor | None = None,
    offset: tf.Tensor | None = None,
    activation: str = "linear",
    *,
    remember: bool = False,
    native: bool | None = None,
) -> tf.Tensor:
    """A convolution whose window is one pixel, and what follows it.

    ```python
    y = pointwise(x, kernel, scale, offset, "relu", remember=True)
    ```

    The compiled op multiplies by panels of the kernel, and scales what it has
    made while a cache holds it. In a graph it may keep the panels: where few
    pixels pass through a kernel, arranging it takes as long as multiplying.

    Args:
        images: Images `(..., channels)`.
        kernel: Kernel `(channels, filters)`.
        scale: A factor for each filter; None for none.
        offset: A summand for each filter; None for none.
        activation: `"linear"`, `"relu"`, `"relu6"` or `"silu"`.
        remember: Whether the kernel is likely to be the same at the next call.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The feature maps `(..., filters)`.
    """
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        none = tf.zeros([0])
        return _library.module().tf_convpar_pointwise(
            images=images,
            kernel=kernel,
            scale=none if scale is None else scale,
            offset=none if offset is None else offset,
            activation=activation,
            remember=remember,
        )
    maps = tf.tensordot(images, kernel, 1)
    maps = maps if scale is None else maps * scale
    maps = maps if offset is None else maps + offset
    return ACTIVATIONS[activation].value(maps)


@tf.RegisterGradient("TfConvpar>Pointwise")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """What the activation was given is computed again."""
    images, kernel, *others = op.inputs
    # As it was called: an input of no values is none.
    scale, offset = (x if x.shape[0] != 0 else None for x in others)
    activation = op.get_attr("activation").decode()
    with same_device(op.outputs[0].device):
        if activation != "linear":
            given = pointwise(images, kernel, scale, offset)
            upstream = passed_back(upstream, given, activation)
        channels, filters = tf.unstack(tf.shape(kernel))
        dy = tf.reshape(upstream, [-1, filters])
        x = tf.reshape(images, [-1, channels])
        by_kernel = tf.matmul(x, dy, transpose_a=True)
        by_offset = tf.zeros([0]) if offset is None else tf.reduce_sum(dy, 0)
        by_scale = tf.zeros([0])
        if scale is not None:
            by_scale = tf.reduce_sum(by_kernel * kernel, 0)
            by_kernel, dy = by_kernel * scale, dy * scale
        by_images = tf.matmul(dy, kernel, transpose_b=True)
        by_images = tf.reshape(by_images, tf.shape(images))
        return [by_images, by_kernel, by_scale, by_offset]
