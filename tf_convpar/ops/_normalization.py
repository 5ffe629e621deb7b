"""Normalization of the channels of pixels, and of groups of channels.

An op for each direction reads its maps once or twice, where TensorFlow's have a
pass for every operation. Second derivatives are those of TensorFlow's ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from . import _library
from ._activations import ACTIVATIONS
from ._channels import is_native
from ._devices import same_device
from ._twin_gradients import register


def layer_normalization(
    maps: tf.Tensor,
    gamma: tf.Tensor | None = None,
    beta: tf.Tensor | None = None,
    epsilon: float = 1e-3,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """Normalizes the channels of each pixel to mean 0 and variance 1.

    ```python
    y = layer_normalization(tf.random.normal((8, 14, 14, 96)), gamma, beta)
    ```

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, equation 4.

    Args:
        maps: Feature maps of any floating dtype and rank, channels last.
        gamma: A factor for each channel, of shape `(channels,)`; None for
            none.
        beta: A summand for each channel; None for none.
        epsilon: Summand of variances.
        native: True for the compiled op, which takes float32; False for
            TensorFlow's own; None for the compiled one if `load()` finds it.

    Returns:
        A tensor of the shape and dtype of the maps.
    """
    maps = tf.convert_to_tensor(maps)
    gamma, beta = _weight_or_empty(gamma, maps), _weight_or_empty(beta, maps)
    if is_native(maps, -1, native):
        return _library.module().tf_convpar_layer_normalization(
            maps=maps, gamma=gamma, beta=beta, epsilon=epsilon
        )
    return _layer_twin(maps, gamma, beta, epsilon)


def group_normalization(
    maps: tf.Tensor,
    groups: int,
    gamma: tf.Tensor | None = None,
    beta: tf.Tensor | None = None,
    epsilon: float = 1e-3,
    activation: str = "linear",
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """Normalizes groups of channels of each image to mean 0 and variance 1.

    ```python
    y = group_normalization(tf.random.normal((8, 14, 14, 96)), 32)
    ```

    Source: Wu and He, "Group Normalization", 2018, equation 7.

    Args:
        maps: Feature maps `(images, ..., channels)` of any floating dtype.
        groups: How many groups of channels there are, of equal size.
        gamma: A factor for each channel, of shape `(channels,)`; None for
            none.
        beta: A summand for each channel; None for none.
        epsilon: Summand of variances.
        activation: Activation of the result: `"linear"`, `"relu"`, `"relu6"`,
            `"silu"` or `"gelu"`.
        native: As for `layer_normalization`.

    Returns:
        A tensor of the shape and dtype of the maps.
    """
    maps = tf.convert_to_tensor(maps)
    gamma, beta = _weight_or_empty(gamma, maps), _weight_or_empty(beta, maps)
    if is_native(maps, -1, native):
        value, *_ = _library.module().tf_convpar_group_normalization(
            maps=maps,
            gamma=gamma,
            beta=beta,
            groups=groups,
            epsilon=epsilon,
            activation=activation,
        )
        return value
    return _group_twin(maps, gamma, beta, groups, epsilon, activation)


def _weight_or_empty(weight: tf.Tensor | None, maps: tf.Tensor) -> tf.Tensor:
    """A weight as the ops take it: a tensor without values stands for None."""
    none = tf.zeros([0], maps.dtype)
    return none if weight is None else tf.convert_to_tensor(weight)


def _scaled(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    x = x if gamma.shape[0] == 0 else x * gamma
    return x if beta.shape[0] == 0 else x + beta


def _normalized(x: tf.Tensor, axes: list[int], epsilon: float) -> tf.Tensor:
    # The second derivatives of `tf.nn.moments` are wrong.
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + epsilon)


def _layer_twin(
    maps: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    return _scaled(_normalized(maps, [-1], epsilon), gamma, beta)


def _group_twin(
    maps: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    groups: int,
    epsilon: float,
    activation: str,
) -> tf.Tensor:
    shape = tf.shape(maps)
    images, group_channels = shape[0], maps.shape[-1] // groups
    pixels = tf.reduce_prod(shape[1:-1])
    grouped = tf.reshape(maps, [images, pixels, groups, group_channels])
    x = tf.reshape(_normalized(grouped, [1, 3], epsilon), shape)
    return ACTIVATIONS[activation].value(_scaled(x, gamma, beta))


def _gradients(
    twin: Callable[..., tf.Tensor],
    dy: tf.Tensor,
    maps: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Gradients by the maps, and rows of those by beta and gamma."""
    n = maps.shape[-1]
    gamma = gamma if gamma.shape[0] else tf.ones(n, maps.dtype)
    beta = beta if beta.shape[0] else tf.zeros(n, maps.dtype)
    with tf.GradientTape() as tape:
        tape.watch([maps, gamma, beta])
        y = twin(maps, gamma, beta)
    by_maps, by_gamma, by_beta = tape.gradient(y, [maps, gamma, beta], dy)
    return by_maps, tf.stack([by_beta, by_gamma])


def _layer_gradients_twin(
    dy: tf.Tensor, maps: tf.Tensor, gamma: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    twin = functools.partial(_layer_twin, epsilon=epsilon)
    return _gradients(twin, dy, maps, gamma, gamma[:0])


def _group_gradients_twin(
    dy: tf.Tensor,
    maps: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *_moments: tf.Tensor,
    **attributes: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes moments anew: their share is in the gradient by the maps."""
    twin = functools.partial(_group_twin, **attributes)
    return _gradients(twin, dy, maps, gamma, beta)


register("LayerNormalizationGradient", _layer_gradients_twin, ["epsilon"])
register(
    "GroupNormalizationGradient",
    _group_gradients_twin,
    ["groups", "epsilon", "activation"],
)


def _weight_gradients(
    sums: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> list[tf.Tensor]:
    by_beta, by_gamma = tf.unstack(sums)
    return [
        gamma if gamma.shape[0] == 0 else by_gamma,
        beta if beta.shape[0] == 0 else by_beta,
    ]


@tf.RegisterGradient("TfConvpar>LayerNormalization")
def _layer_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    maps, gamma, beta = op.inputs
    with same_device(op.outputs[0].device):
        by_maps, sums = (
            _library.module().tf_convpar_layer_normalization_gradient(
                gradients=upstream,
                maps=maps,
                gamma=gamma,
                epsilon=op.get_attr("epsilon"),
            )
        )
        return [by_maps, *_weight_gradients(sums, gamma, beta)]


@tf.RegisterGradient("TfConvpar>GroupNormalization")
def _group_gradient(op: Any, upstream: tf.Tensor, *_: Any) -> list[tf.Tensor]:
    maps, gamma, beta = op.inputs
    with same_device(op.outputs[0].device):
        by_maps, sums = (
            _library.module().tf_convpar_group_normalization_gradient(
                gradients=upstream,
                maps=maps,
                gamma=gamma,
                beta=beta,
                mean=op.outputs[1],
                variance=op.outputs[2],
                groups=op.get_attr("groups"),
                epsilon=op.get_attr("epsilon"),
                activation=op.get_attr("activation"),
            )
        )
        return [by_maps, *_weight_gradients(sums, gamma, beta)]
