"""Convolutions for inference: products by kernels that stay."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activation_gradients import passed_back
from ._activations import ACTIVATIONS
from ._concatenated_products import Joined
from ._depthwise import padded
from ._devices import same_device
from ._windows import Convolution


def convolution(
    images: tf.Tensor | Joined,
    kernel: tf.Tensor,
    scale: tf.Tensor | None = None,
    offset: tf.Tensor | None = None,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
    *,
    stride: int = 1,
    padding: str = "valid",
    zeros: Sequence[int] = (0, 0, 0, 0),
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
        images: Images `(batch, height, width, channels)`. If they are `Joined`,
            the kernel must be one of single pixels, and the stride 1.
        kernel: Kernel `(*window, channels, filters)`.
        scale: A factor for each filter; None for none.
        offset: A summand for each filter; None for none.
        activation: `"linear"`, `"relu"`, `"relu6"`, `"silu"` or `"gelu"`.
        summand: What is added before the activation, of the shape of the
            feature maps; None for nothing.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        zeros: Zeros above, below, left and right of the image, beside those of
            the padding.
        remember: Whether the kernel is likely to be the same at the next call.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The feature maps `(batch, new_height, new_width, filters)`.
    """
    of = images if isinstance(images, Joined) else Joined([images])
    parts = [tf.convert_to_tensor(part) for part in of.parts]
    if parts[0].dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        none = tf.zeros([0])
        return _library.module().tf_convpar_convolution(
            images=parts,
            kernel=kernel,
            scale=none if scale is None else scale,
            offset=none if offset is None else offset,
            summand=none if summand is None else summand,
            image_scale=none if of.scale is None else of.scale,
            image_offset=none if of.offset is None else of.offset,
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            activation=activation,
            image_activation=of.activation,
            image_epsilon=-1.0 if of.epsilon is None else of.epsilon,
            remember=remember,
        )
    images = padded(of.tensor(), zeros)
    plain = Convolution(stride, padding.upper())
    maps = plain.maps(images, tf.convert_to_tensor(kernel))
    maps = maps if scale is None else maps * scale
    maps = maps if offset is None else maps + offset
    maps = maps if summand is None else maps + summand
    return ACTIVATIONS[activation].value(maps)


@tf.RegisterGradient("TfConvpar>Convolution")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """What both activations were given is computed again."""
    count = op.get_attr("parts")
    parts, (kernel, *others) = op.inputs[:count], op.inputs[count:]
    # As it was called: an input of no values is none.
    others = [None if _is_none(x) else x for x in others]
    scale, offset, summand, *change = others
    image_scale, image_offset = change
    activation = op.get_attr("activation").decode()
    stride = op.get_attr("stride")
    padding = op.get_attr("padding").decode()
    with same_device(op.outputs[0].device):
        by_name = op.get_attr("image_activation").decode()
        epsilon = op.get_attr("image_epsilon")
        epsilon = None if epsilon < 0 else epsilon
        of = Joined(parts, image_scale, image_offset, by_name, epsilon)
        sources = [x for x in (*parts, *change) if x is not None]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            images = padded(of.tensor(), op.get_attr("zeros"))
        if activation != "linear":
            given = convolution(
                *(images, kernel, scale, offset, "linear", summand),
                stride=stride,
                padding=padding.lower(),
            )
            upstream = passed_back(upstream, given, activation)
        plain = Convolution(stride, padding)
        by_kernel = plain.by_kernel(images, kernel, upstream)
        axes = [0, 1, 2]
        none = tf.zeros([0])
        by_summand = none if summand is None else upstream
        by_offset = none if offset is None else tf.reduce_sum(upstream, axes)
        by_scale = none
        if scale is not None:
            by_scale = tf.reduce_sum(by_kernel * kernel, axes)
            by_kernel, upstream = by_kernel * scale, upstream * scale
        by_images = plain.by_images(images, kernel, upstream)
        by_sources = tape.gradient(images, sources, by_images)
        by_parts, rest = by_sources[:count], iter(by_sources[count:])
        by_change = [none if x is None else next(rest) for x in change]
        return [
            *(*by_parts, by_kernel),
            *(by_scale, by_offset, by_summand),
            *by_change,
        ]


def _is_none(x: tf.Tensor) -> bool:
    return bool(x.shape.rank == 1 and x.shape[0] == 0)
