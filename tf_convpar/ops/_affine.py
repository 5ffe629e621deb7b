"""A normalization as a factor and a summand of each channel."""

from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device


def affine(
    mean: tf.Tensor,
    variance: tf.Tensor,
    gamma: tf.Tensor | None = None,
    beta: tf.Tensor | None = None,
    epsilon: float = 1e-3,
    *,
    native: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """By what normalizing scales each channel, and what it then adds.

    ```python
    scale, offset = affine(mean, variance, gamma, beta)
    y = x * scale + offset
    ```

    In TensorFlow's ops that are six, of which a model with a hundred
    normalizations has more than of all others.

    Args:
        mean: Means `(channels,)`.
        variance: Variances of the same shape.
        gamma: A factor for each channel; None for none.
        beta: A summand for each channel; None for none.
        epsilon: What is added to variances.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The factors and the summands, each `(channels,)`.
    """
    mean = tf.convert_to_tensor(mean)
    if mean.dtype == tf.float32 and (
        _library.load() if native is None else native
    ):
        none = tf.zeros([0])
        scale, offset = _library.module().tf_convpar_affine(
            mean=mean,
            variance=variance,
            gamma=none if gamma is None else gamma,
            beta=none if beta is None else beta,
            epsilon=epsilon,
        )
        return scale, offset
    scale = tf.math.rsqrt(variance + epsilon)
    scale = scale if gamma is None else scale * gamma
    offset = -mean * scale
    return scale, offset if beta is None else offset + beta


@tf.RegisterGradient("TfConvpar>Affine")
def _gradients(
    op: Any, by_scale: tf.Tensor, by_offset: tf.Tensor
) -> list[tf.Tensor]:
    """Of gamma (variance + epsilon)^-1/2 and beta - mean scale."""
    mean, variance, gamma, beta = op.inputs
    with same_device(op.outputs[0].device):
        # The output would do, but not for a second derivative of it.
        inverse = tf.math.rsqrt(variance + op.get_attr("epsilon"))
        scale = inverse if gamma.shape[0] == 0 else inverse * gamma
        total = by_scale - mean * by_offset
        return [
            -scale * by_offset,
            -0.5 * total * scale * tf.square(inverse),
            gamma if gamma.shape[0] == 0 else total * inverse,
            beta if beta.shape[0] == 0 else by_offset,
        ]
