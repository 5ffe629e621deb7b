"""Pooling for inference, and the gradient of max pooling."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from . import _windows
from ._depthwise import padded
from ._devices import same_device
from ._twin_gradients import register


def max_pool(
    images: tf.Tensor,
    window: Sequence[int],
    stride: int,
    padding: str = "valid",
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """The maxima of windows, as `tf.nn.max_pool2d` has them.

    ```python
    y = max_pool(x, (3, 3), 2, "same")
    ```

    Only the gradient is an op of this package: TensorFlow's own compares one
    number after the other. Where several pixels of a window are its maximum,
    the gradient goes to the first of them, row by row, as in TensorFlow.

    Args:
        images: Images `(batch, height, width, channels)`.
        window: Height and width of the window.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`.
        native: True for the compiled gradient, which takes float32 on a CPU;
            False for TensorFlow's; None for the compiled one if `load()` finds
            it.

    Returns:
        The maxima, with as many channels.
    """
    images = tf.convert_to_tensor(images)
    compiled = images.dtype == tf.float32 and (
        _library.load() if native is None else native
    )
    pool: Any = _pool_with_gradient if compiled else _windows.pool2d
    maxima: tf.Tensor = pool(images, list(window), stride, padding.upper())
    return maxima


def pool(
    images: tf.Tensor,
    window: Sequence[int],
    stride: int,
    padding: str = "valid",
    zeros: Sequence[int] = (0, 0, 0, 0),
    kind: str = "max",
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """The largest of each window, or the mean, for inference.

    ```python
    y = pool(x, (3, 3), 2, zeros=(1, 1, 1, 1))
    ```

    Args:
        images: Images `(batch, height, width, channels)`.
        window: Height and width of the window.
        stride: Stride on both axes.
        padding: `"same"` or `"valid"`. Pixels that it adds do not count.
        zeros: Zeros above, below, left and right of the image, which do count;
            only for `"max"` and `"valid"`.
        kind: `"max"` or `"average"`.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's; None for the compiled one if `load()` finds it.

    Returns:
        The maxima or means, with as many channels.
    """
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        return _library.module().tf_convpar_pool(
            images=images,
            window=list(window),
            stride=stride,
            padding=padding.upper(),
            zeros=list(zeros),
            kind=kind,
        )
    return _windows.pool2d(
        padded(images, zeros), window, stride, padding.upper(), kind
    )


# The op is for inference.
register(
    "Pool",
    functools.partial(pool, native=False),
    ["window", "stride", "padding", "zeros", "kind"],
)


def _pool_with_gradient(
    images: tf.Tensor, window: list[int], stride: int, padding: str
) -> tf.Tensor:
    @tf.custom_gradient
    def pool(x: tf.Tensor) -> Any:
        pooled = _windows.pool2d(x, window, stride, padding)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _library.module().tf_convpar_max_pool_gradient(
                images=x,
                maxima=pooled,
                gradients=upstream,
                window=window,
                stride=stride,
                padding=padding,
            )

        return pooled, gradient

    maxima: tf.Tensor = pool(images)
    return maxima


@tf.RegisterGradient("TfConvpar>MaxPoolGradient")
def _gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """Gradients of a gradient that is linear: each number is of one pixel."""
    images, maxima, _ = op.inputs
    with same_device(op.outputs[0].device):
        by_gradients = _windows.by_gradients(
            images,
            maxima,
            upstream,
            op.get_attr("window"),
            op.get_attr("stride"),
            op.get_attr("padding").decode(),
        )
        return [tf.zeros_like(images), tf.zeros_like(maxima), by_gradients]
