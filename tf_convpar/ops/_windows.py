"""TensorFlow's convolutions and pooling, safe for empty images and results.

TensorFlow's own cannot be relied on where images or results have no numbers
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
from ._graphs import of_this_graph


class Convolution(NamedTuple):
    """A convolution on two axes, and its gradients to any order.

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
        *window, channels = _sizes(kernel, 3 if self.depthwise else 4)
        movement = self.stride, self.padding
        shape = _map_shape(images, window[:2], channels, *movement)

        def run(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
            def convolved() -> tf.Tensor:
                run = tf.raw_ops.Conv2D
                if self.depthwise:
                    run = tf.raw_ops.DepthwiseConv2dNative
                kernel_4d = self._with_filter_axis(kernel)
                return run(
                    input=images,
                    filter=kernel_4d,
                    **_window_attributes(*movement),
                )

            def zeros() -> tf.Tensor:
                return tf.zeros(_dynamic_shape(shape, images), images.dtype)

            if 0 in shape or _has_none(images):
                return zeros()
            # oneDNN has no float64.
            if shape[0] or None in shape[1:] or images.dtype == tf.float64:
                return convolved()
            return tf.cond(tf.shape(images)[0] > 0, convolved, zeros)

        def gradients(
            dy: tf.Tensor, images: tf.Tensor, kernel: tf.Tensor
        ) -> list[tf.Tensor]:
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
            kernel_gradient = run(
                input=images,
                filter_sizes=tf.shape(self._with_filter_axis(kernel)),
                out_backprop=gradients,
                **_window_attributes(self.stride, self.padding),
            )
            kernel_gradient = (
                tf.squeeze(kernel_gradient, -1)
                if self.depthwise
                else kernel_gradient
            )
            if gradients.shape.is_fully_defined():
                return kernel_gradient
            return tf.where(
                tf.size(gradients, tf.int64) > 0,
                kernel_gradient,
                tf.zeros_like(kernel_gradient),
            )

        def second_gradients(
            dk: tf.Tensor, images: tf.Tensor, gradients: tf.Tensor
        ) -> list[tf.Tensor]:
            return [
                self.by_images(images, dk, gradients),
                self.maps(images, dk),
            ]

        return _with_gradients(run, second_gradients, images, gradients)

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
                filter=self._with_filter_axis(kernel),
                out_backprop=gradients,
                **_window_attributes(self.stride, self.padding),
            )

        def second_gradients(
            dx: tf.Tensor, kernel: tf.Tensor, gradients: tf.Tensor
        ) -> list[tf.Tensor]:
            return [
                self.by_kernel(dx, kernel, gradients),
                self.maps(dx, kernel),
            ]

        return _with_gradients(run, second_gradients, kernel, gradients)

    def _with_filter_axis(self, kernel: tf.Tensor) -> tf.Tensor:
        """The kernel as TensorFlow takes it, with an axis of filters."""
        return tf.expand_dims(kernel, -1) if self.depthwise else kernel


def pool2d(
    images: tf.Tensor,
    window: Sequence[int],
    stride: int,
    padding: str,
    kind: str = "max",
) -> tf.Tensor:
    """The largest of each window, or with `"average"` the mean."""
    shape = _map_shape(images, window, _sizes(images)[-1], stride, padding)
    if 0 in shape:
        # Made of the images, so that there is a gradient by them.
        no_numbers = tf.reshape(images, [-1])[:0]
        return tf.reshape(no_numbers, _dynamic_shape(shape, images))
    if kind != "max":
        return tf.nn.avg_pool2d(images, list(window), stride, padding)
    maxima = tf.nn.max_pool2d(images, list(window), stride, padding)

    def gradient(dy: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        # oneDNN, which ends the process without images, has no V2.
        return tf.raw_ops.MaxPoolGradV2(
            orig_input=images,
            orig_output=maxima,
            grad=dy,
            ksize=[1, *window, 1],
            **_window_attributes(stride, padding),
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
    """The gradient of max pooling's gradient, by the gradients of maxima."""
    if _has_none(images) or _has_none(maxima):
        return tf.zeros_like(maxima)
    return tf.raw_ops.MaxPoolGradGrad(
        orig_input=images,
        orig_output=maxima,
        grad=upstream,
        ksize=[1, *window, 1],
        **_window_attributes(stride, padding),
    )


def _with_gradients(
    run: Callable[..., tf.Tensor],
    gradients: Callable[..., Any],
    *inputs: tf.Tensor,
) -> tf.Tensor:
    """The result of a function with custom gradients, on the same device.

    Args:
        run: Takes the inputs.
        gradients: Takes the gradient of the result, and the inputs.
        *inputs: The inputs.
    """

    @tf.custom_gradient
    def call(*arguments: tf.Tensor) -> Any:
        result = run(*arguments)
        device = result.device

        def gradient(upstream: tf.Tensor) -> Any:
            with same_device(device):
                return gradients(upstream, *arguments)

        return result, gradient

    result: tf.Tensor = call(*map(of_this_graph, inputs))
    return result


def _window_attributes(stride: int, padding: str) -> dict[str, Any]:
    """Stride and padding, as attributes of TensorFlow's ops."""
    return {"strides": [1, stride, stride, 1], "padding": padding}


def _has_none(x: tf.Tensor) -> bool:
    """Whether a tensor is known to have no numbers."""
    return 0 in _sizes(x)


def _sizes(x: tf.Tensor, rank: int = 4) -> list[int | None]:
    """The shape of a tensor of such a rank, as far as it is known."""
    has_rank = x.shape.rank is not None
    return list(x.shape.as_list()) if has_rank else [None] * rank


def _map_shape(
    images: tf.Tensor,
    window: Sequence[int | None],
    channels: int | None,
    stride: int,
    padding: str,
) -> list[int | None]:
    """The shape of feature maps, as far as it is known."""
    batch, *sizes, _ = _sizes(images)
    new_sizes = [
        _size_after(size, pixels, stride, padding)
        for size, pixels in zip(sizes, window, strict=True)
    ]
    return [batch, *new_sizes, channels]


def _size_after(
    size: int | None, window: int | None, stride: int, padding: str
) -> int | None:
    if size is None:
        return None
    if padding == "SAME":
        return -(-size // stride)
    if window is None:
        return None
    return max(0, (size - window) // stride + 1)


def _dynamic_shape(
    shape: Sequence[int | None], images: tf.Tensor
) -> list[int | tf.Tensor]:
    """A shape, with an unknown number of images as a tensor."""
    batch, *other_sizes = shape
    return [tf.shape(images)[0] if batch is None else batch, *other_sizes]
