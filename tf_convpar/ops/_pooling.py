"""Maxima of windows, whose gradient is made in vectors of channels."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device


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
    number after the other. What several pixels of a window are alike in goes
    to the first of them, row by row, as in TensorFlow.

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
    ours = images.dtype == tf.float32 and (
        _library.load() if native is None else native
    )
    pool: Any = _pool_with_gradient if ours else tf.nn.max_pool2d
    found: tf.Tensor = pool(images, list(window), stride, padding.upper())
    return found


def _pool_with_gradient(
    images: tf.Tensor, window: list[int], stride: int, padding: str
) -> tf.Tensor:
    @tf.custom_gradient
    def pool(x: tf.Tensor) -> Any:
        maxima = tf.nn.max_pool2d(x, window, stride, padding)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _library.module().tf_convpar_max_pool_gradient(
                images=x,
                maxima=maxima,
                gradients=upstream,
                window=window,
                stride=stride,
                padding=padding,
            )

        return maxima, gradient

    found: tf.Tensor = pool(images)
    return found


@tf.RegisterGradient("TfConvpar>MaxPoolGradient")
def _gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    """It is linear in the gradients: each comes from one pixel."""
    images, maxima, _ = op.inputs
    stride = op.get_attr("stride")
    with same_device(op.outputs[0].device):
        by_gradients = tf.raw_ops.MaxPoolGradGrad(
            orig_input=images,
            orig_output=maxima,
            grad=upstream,
            ksize=[1, *op.get_attr("window"), 1],
            strides=[1, stride, stride, 1],
            padding=op.get_attr("padding").decode(),
        )
        return [tf.zeros_like(images), tf.zeros_like(maxima), by_gradients]
