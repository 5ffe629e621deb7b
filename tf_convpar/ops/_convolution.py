"""Convolutions for inference: products by kernels that stay."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activation_gradients import passed_back
from ._concatenated_products import Joined
from ._depthwise import padded
from ._devices import same_device
from ._epilogue import NOTHING
from ._epilogue import Epilogue
from ._windows import Convolution


def convolution(
    images: tf.Tensor | None,
    kernel: tf.Tensor,
    epilogue: Epilogue = NOTHING,
    *,
    stride: int = 1,
    padding: str = "valid",
    zeros: Sequence[int] = (0, 0, 0, 0),
    native: bool | None = None,
) -> tf.Tensor:
    """A convolution on two axes, and what follows it, in one pass.

    ```python
    y = convolution(x, kernel, Epilogue(bias=bias, activation="relu"))
    ```

    The compiled op multiplies by panels of the kernel, and does what follows
    before it writes. In a graph it may keep the panels: where few pixels pass
    through a kernel, arranging it takes as long as multiplying.

    Args:
        images: Images `(batch, height, width, channels)`. They are not read if
            the epilogue says how they were made.
        kernel: Kernel `(*window, channels, filters)`.
        epilogue: What follows.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        zeros: Zeros above, below, left and right of the image, beside those of
            the padding.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The feature maps `(batch, new_height, new_width, filters)`.
    """
    of = epilogue.joined or Joined([images])
    parts = [tf.convert_to_tensor(part) for part in of.parts]
    if parts[0].dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        none = tf.zeros([0])
        optional = {
            "scale": epilogue.factor,
            "offset": epilogue.bias,
            "summand": epilogue.added,
            "image_scale": of.scale,
            "image_offset": of.offset,
        }
        return _library.module().tf_convpar_convolution(
            images=parts,
            kernel=kernel,
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            activation=epilogue.activation,
            image_activation=of.activation,
            image_epsilon=-1.0 if of.epsilon is None else of.epsilon,
            remember=epilogue.remember,
            **{k: none if v is None else v for k, v in optional.items()},
        )
    plain = Convolution(stride, padding.upper())
    maps = plain.maps(padded(of.tensor(), zeros), tf.convert_to_tensor(kernel))
    return epilogue.applied(maps)


@tf.RegisterGradient("TfConvpar>Convolution")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """Gradients; the inputs of both activations are recomputed."""
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
            before = convolution(
                images,
                kernel,
                Epilogue(scale, offset, summand),
                stride=stride,
                padding=padding.lower(),
            )
            upstream = passed_back(upstream, before, activation)
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
