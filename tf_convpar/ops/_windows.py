"""TensorFlow's convolutions and pooling, also where there is nothing to do.

What these give is not to be relied on where images or results have no numbers
(TensorFlow 2.21). With oneDNN, a convolution of no images has the shape of the
images; where a window fits into no image, convolutions return memory that
nobody has written, and pooling fails or ends the process. So do, in a graph,
gradients by maxima of no images. Gradients by a kernel are unwritten memory
without oneDNN.

Sizes that are known decide while a graph is built. Of an unknown one the number
of images may turn out as 0, as of a device that has no part of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from ._devices import same_device


class Convolution(NamedTuple):
    """A convolution on two axes, and its gradients; each has those of it.

    ```python
    y = Convolution(1, "SAME").maps(x, kernel)
    ```

    Images are `(batch, height, width, channels)`, and kernels
    `(*window, channels, filters)`; of a depthwise convolution, which has one
    for each channel, `(*window, channels)`.

    Attributes:
        stride: Stride on both axes.
        padding: `"SAME"` or `"VALID"`.
        depthwise: Whether each channel has a kernel of its own.
    """

    stride: int
    padding: str
    depthwise: bool = False

    def maps(self, images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """The feature maps."""
        *window, made = _sizes(kernel, 3 if self.depthwise else 4)
        moves = self.stride, self.padding
        shape = _made(images, window[:2], made, *moves)

        def run(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
            def some() -> tf.Tensor:
                run = tf.raw_ops.Conv2D
                if self.depthwise:
                    run = tf.raw_ops.DepthwiseConv2dNative
                wide = self._wide(kernel)
                return run(input=images, filter=wide, **_of(*moves))

            def none() -> tf.Tensor:
                return tf.zeros(_filled(shape, images), images.dtype)

            if 0 in shape or _has_none(images):
                return none()
            # oneDNN has no float64.
            if shape[0] or None in shape[1:] or images.dtype == tf.float64:
                return some()
            return tf.cond(tf.shape(images)[0] > 0, some, none)

        def gradients(dy: tf.Tensor) -> list[tf.Tensor]:
            return [
                self.by_images(images, kernel, dy),
                self.by_kernel(images, kernel, dy),
            ]

        return _with_gradients(run, gradients, images, kernel)

    def by_kernel(
        self, images: tf.Tensor, kernel: tf.Tensor, gradients: tf.Tensor
    ) -> tf.Tensor:
        """The gradient by the kernel, of which only the shape is read."""

        def run(images: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
            if _has_none(images) or _has_none(gradients):
                return tf.zeros_like(kernel)
            run = tf.raw_ops.Conv2DBackpropFilter
            if self.depthwise:
                run = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter
            found = run(
                input=images,
                filter_sizes=tf.shape(self._wide(kernel)),
                out_backprop=gradients,
                **_of(self.stride, self.padding),
            )
            found = tf.squeeze(found, -1) if self.depthwise else found
            if gradients.shape.is_fully_defined():
                return found
            return tf.where(tf.size(gradients) > 0, found, tf.zeros_like(found))

        def by(dk: tf.Tensor) -> list[tf.Tensor]:
            return [
                self.by_images(images, dk, gradients),
                self.maps(images, dk),
            ]

        return _with_gradients(run, by, images, gradients)

    def by_images(
        self, images: tf.Tensor, kernel: tf.Tensor, gradients: tf.Tensor
    ) -> tf.Tensor:
        """The gradient by the images, of which only the shape is read."""

        def run(kernel: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
            if any(map(_has_none, (images, kernel, gradients))):
                return tf.zeros_like(images)
            run = tf.raw_ops.Conv2DBackpropInput
            if self.depthwise:
                run = tf.raw_ops.DepthwiseConv2dNativeBackpropInput
            return run(
                input_sizes=tf.shape(images),
                filter=self._wide(kernel),
                out_backprop=gradients,
                **_of(self.stride, self.padding),
            )

        def by(dx: tf.Tensor) -> list[tf.Tensor]:
            return [
                self.by_kernel(dx, kernel, gradients),
                self.maps(dx, kernel),
            ]

        return _with_gradients(run, by, kernel, gradients)

    def _wide(self, kernel: tf.Tensor) -> tf.Tensor:
        """As TensorFlow has it, with the number of filters of each channel."""
        return tf.expand_dims(kernel, -1) if self.depthwise else kernel


def pool2d(
    images: tf.Tensor,
    window: Sequence[int],
    stride: int,
    padding: str,
    kind: str = "max",
) -> tf.Tensor:
    """The largest of each window, or with `"average"` the mean."""
    shape = _made(images, window, _sizes(images)[-1], stride, padding)
    if 0 in shape:
        # What is made of the images has a gradient by them.
        nothing = tf.reshape(images, [-1])[:0]
        return tf.reshape(nothing, _filled(shape, images))
    if kind != "max":
        return tf.nn.avg_pool2d(images, list(window), stride, padding)
    maxima = tf.nn.max_pool2d(images, list(window), stride, padding)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        # oneDNN, which ends the process without images, has no V2.
        return tf.raw_ops.MaxPoolGradV2(
            orig_input=images,
            orig_output=maxima,
            grad=dy,
            ksize=[1, *window, 1],
            **_of(stride, padding),
        )

    return _with_gradients(lambda _: maxima, gradient, images)


def by_gradients(
    images: tf.Tensor,
    maxima: tf.Tensor,
    upstream: tf.Tensor,
    window: Sequence[int],
    stride: int,
    padding: str,
) -> tf.Tensor:
    """What a gradient by images of their maxima has by their gradients."""
    if _has_none(images) or _has_none(maxima):
        return tf.zeros_like(maxima)
    return tf.raw_ops.MaxPoolGradGrad(
        orig_input=images,
        orig_output=maxima,
        grad=upstream,
        ksize=[1, *window, 1],
        **_of(stride, padding),
    )


def _with_gradients(
    run: Callable[..., tf.Tensor],
    gradients: Callable[[tf.Tensor], Any],
    *given: tf.Tensor,
) -> tf.Tensor:
    """What a function gives, with gradients of ours where it has run."""

    @tf.custom_gradient
    def call(*given: tf.Tensor) -> Any:
        found = run(*given)
        device = found.device

        def gradient(upstream: tf.Tensor) -> Any:
            with same_device(device):
                return gradients(upstream)

        return found, gradient

    found: tf.Tensor = call(*given)
    return found


def _of(stride: int, padding: str) -> dict[str, Any]:
    """How a window moves, as attributes of TensorFlow's ops."""
    return {"strides": [1, stride, stride, 1], "padding": padding}


def _has_none(x: tf.Tensor) -> bool:
    """Whether a tensor is known to have no numbers."""
    return 0 in _sizes(x)


def _sizes(x: tf.Tensor, rank: int = 4) -> list[int | None]:
    """The shape of a tensor of such a rank, as far as it is known."""
    known = x.shape.rank is not None
    return list(x.shape.as_list()) if known else [None] * rank


def _made(
    images: tf.Tensor,
    window: Sequence[int | None],
    channels: int | None,
    stride: int,
    padding: str,
) -> list[int | None]:
    """The shape of feature maps, as far as it is known."""
    batch, *sizes, _ = _sizes(images)
    made = [
        _along(size, pixels, stride, padding)
        for size, pixels in zip(sizes, window, strict=True)
    ]
    return [batch, *made, channels]


def _along(
    size: int | None, window: int | None, stride: int, padding: str
) -> int | None:
    if size is None:
        return None
    if padding == "SAME":
        return -(-size // stride)
    if window is None:
        return None
    return max(0, (size - window) // stride + 1)


def _filled(
    shape: Sequence[int | None], images: tf.Tensor
) -> list[int | tf.Tensor]:
    """A shape, with an unknown number of images as it is found then."""
    batch, *others = shape
    return [tf.shape(images)[0] if batch is None else batch, *others]
