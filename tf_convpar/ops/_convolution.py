"""Convolutions for inference, by kernels that stay the same."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activation_gradients import passed_back
from ._depthwise import padded
from ._devices import same_device
from ._epilogue import NOTHING
from ._epilogue import Epilogue
from ._joined_images import JoinedImages
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
    """A convolution on two axes and its epilogue, in one pass.

    ```python
    y = convolution(x, kernel, Epilogue(bias=bias, activation="relu"))
    ```

    The compiled op multiplies by panels of the kernel, and computes the
    epilogue before it writes. In a graph it may keep the panels: where few
    pixels pass through a kernel, arranging it takes as long as multiplying.

    Args:
        images: Images `(batch, height, width, channels)`. They are not read if
            the epilogue says how they were made.
        kernel: Kernel `(*window, channels, filters)`.
        epilogue: Bias, activation and the like, of the result.
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
    joined_images = epilogue.joined or JoinedImages([images])
    parts = [tf.convert_to_tensor(part) for part in joined_images.parts]
    if parts[0].dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        absent = tf.zeros([0])
        optional = {
            "scale": epilogue.factor,
            "offset": epilogue.bias,
            "summand": epilogue.added,
            "image_scale": joined_images.scale,
            "image_offset": joined_images.offset,
        }
        return _library.module().tf_convpar_convolution(
            images=parts,
            kernel=kernel,
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            activation=epilogue.activation,
            image_activation=joined_images.activation,
            image_epsilon=-1.0
            if joined_images.epsilon is None
            else joined_images.epsilon,
            remember=epilogue.remember,
            **{k: absent if v is None else v for k, v in optional.items()},
        )
    tensorflow_convolution = Convolution(stride, padding.upper())
    maps = tensorflow_convolution.maps(
        padded(joined_images.tensor(), zeros), tf.convert_to_tensor(kernel)
    )
    return epilogue.applied(maps)


@tf.RegisterGradient("TfConvpar>Convolution")
def _gradients(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """Gradients; the inputs of both activations are recomputed."""
    count = op.get_attr("parts")
    parts, (kernel, *optional) = op.inputs[:count], op.inputs[count:]
    # As it was called: an input of no values is none.
    optional = [None if _is_absent(x) else x for x in optional]
    scale, offset, summand, *image_changes = optional
    image_scale, image_offset = image_changes
    activation = op.get_attr("activation").decode()
    stride = op.get_attr("stride")
    padding = op.get_attr("padding").decode()
    with same_device(op.outputs[0].device):
        image_activation = op.get_attr("image_activation").decode()
        epsilon = op.get_attr("image_epsilon")
        epsilon = None if epsilon < 0 else epsilon
        joined_images = JoinedImages(
            parts, image_scale, image_offset, image_activation, epsilon
        )
        sources = [x for x in (*parts, *image_changes) if x is not None]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            images = padded(joined_images.tensor(), op.get_attr("zeros"))
        if activation != "linear":
            before = convolution(
                images,
                kernel,
                Epilogue(scale, offset, summand),
                stride=stride,
                padding=padding.lower(),
            )
            upstream = passed_back(upstream, before, activation)
        tensorflow_convolution = Convolution(stride, padding)
        by_kernel = tensorflow_convolution.by_kernel(images, kernel, upstream)
        axes = [0, 1, 2]
        absent = tf.zeros([0])
        by_summand = absent if summand is None else upstream
        by_offset = absent if offset is None else tf.reduce_sum(upstream, axes)
        by_scale = absent
        if scale is not None:
            by_scale = tf.reduce_sum(by_kernel * kernel, axes)
            by_kernel, upstream = by_kernel * scale, upstream * scale
        by_images = tensorflow_convolution.by_images(images, kernel, upstream)
        by_sources = tape.gradient(images, sources, by_images)
        by_parts, remaining = by_sources[:count], iter(by_sources[count:])
        by_image_changes = [
            absent if x is None else next(remaining) for x in image_changes
        ]
        return [
            *(*by_parts, by_kernel),
            *(by_scale, by_offset, by_summand),
            *by_image_changes,
        ]


def _is_absent(x: tf.Tensor) -> bool:
    return bool(x.shape.rank == 1 and x.shape[0] == 0)
