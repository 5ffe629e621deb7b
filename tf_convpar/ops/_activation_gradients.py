"""Gradients through an activation that follows a normalization.

The activation's inputs are not kept: each is computed again from the feature
maps where it is needed. Each op reads its maps once.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activations import ACTIVATIONS
from ._channels import channel_sums
from ._channels import is_native
from ._channels import scale_channels
from ._twin_gradients import register


def activated_sums(
    gradients: tf.Tensor,
    maps: tf.Tensor,
    means: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    activation: str,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """`channel_sums` of gradients that have passed back through an activation.

    ```python
    # y = relu(x scale + offset)
    by_beta, by_gamma = tf.unstack(
        activated_sums(dy, x, mean, scale, offset, "relu")
    )
    ```

    Args:
        gradients: Gradients of the activation's results.
        maps: Feature maps of the same shape, channels last.
        means: Values of shape `(channels,)`, which are subtracted from the
            maps in the products.
        scale: A factor for each channel, of shape `(channels,)`.
        offset: A summand for each channel.
        activation: `"linear"`, `"relu"`, `"relu6"`, `"silu"` or `"gelu"`.
        native: As for `channel_sums`.

    Returns:
        A tensor of shape `(2, channels)`.
    """
    maps = tf.convert_to_tensor(maps)
    if is_native(maps, -1, native):
        return _library.module().tf_convpar_activated_sums(
            gradients=gradients,
            maps=maps,
            means=means,
            scale=scale,
            offset=offset,
            activation=activation,
        )
    passed = passed_back(gradients, maps * scale + offset, activation)
    return channel_sums(passed, maps, means, native=False)


def activated_gradient(
    gradients: tf.Tensor,
    maps: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    by_maps: tf.Tensor,
    by_all: tf.Tensor,
    activation: str,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """`scale g + by_maps x + by_all`, of gradients `g` passed back.

    ```python
    # y = relu(x scale + offset), where scale and offset depend on x
    dx = activated_gradient(dy, x, scale, offset, by_maps, by_all, "relu")
    ```

    Args:
        gradients: Gradients of the activation's results.
        maps: Feature maps of the same shape, channels last.
        scale: A factor for each channel, of shape `(channels,)`.
        offset: A summand for each channel.
        by_maps: A factor for each channel of the maps.
        by_all: A summand of all numbers of a channel.
        activation: As for `activated_sums`.
        native: As for `channel_sums`.

    Returns:
        A tensor of the shape of the maps.
    """
    maps = tf.convert_to_tensor(maps)
    if is_native(maps, -1, native):
        return _library.module().tf_convpar_activated_gradient(
            gradients=gradients,
            maps=maps,
            scale=scale,
            offset=offset,
            by_maps=by_maps,
            by_all=by_all,
            activation=activation,
        )
    passed = passed_back(gradients, maps * scale + offset, activation)
    return scale_channels(
        [passed, maps], [scale, by_maps], by_all, native=False
    )


def biased(
    maps: tf.Tensor,
    bias: tf.Tensor,
    activation: str,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """An activation of feature maps to which a bias is added.

    ```python
    y = biased(tf.matmul(x, kernel), bias, "gelu")
    ```

    Args:
        maps: Feature maps, channels last.
        bias: A summand for each channel, of shape `(channels,)`.
        activation: As for `activated_sums`.
        native: As for `channel_sums`.

    Returns:
        A tensor of the shape of the maps.
    """
    maps, bias = tf.convert_to_tensor(maps), tf.convert_to_tensor(bias)
    if not is_native(maps, -1, native):
        return ACTIVATIONS[activation].value(maps + bias)

    @tf.custom_gradient
    def run(maps: tf.Tensor, bias: tf.Tensor) -> Any:
        y = scale_channels(
            [maps], [tf.ones_like(bias)], bias, activation=activation
        )

        def gradient(dy: tf.Tensor) -> Sequence[tf.Tensor]:
            return biased_gradient(dy, maps, bias, activation)

        return y, gradient

    result: tf.Tensor = run(maps, bias)
    return result


def biased_gradient(
    gradients: tf.Tensor,
    maps: tf.Tensor,
    bias: tf.Tensor,
    activation: str,
    *,
    native: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradients of `biased` by its maps and its bias.

    ```python
    by_maps, by_bias = biased_gradient(dy, maps, bias, "gelu")
    ```

    Args:
        gradients: Gradients of the activation's results.
        maps: The maps that `biased` was given, of the same shape.
        bias: The bias that `biased` was given.
        activation: As for `activated_sums`.
        native: As for `channel_sums`.
    """
    maps = tf.convert_to_tensor(maps)
    if is_native(maps, -1, native):
        by_maps, by_bias = _library.module().tf_convpar_biased_gradient(
            gradients=gradients, maps=maps, bias=bias, activation=activation
        )
        return by_maps, by_bias
    passed = passed_back(gradients, maps + bias, activation)
    return passed, tf.reduce_sum(passed, list(range(passed.shape.rank - 1)))


def passed_back(
    gradients: tf.Tensor, inputs: tf.Tensor, activation: str
) -> tf.Tensor:
    """Gradients by the inputs of an activation, from those by its results."""
    return gradients * ACTIVATIONS[activation].slope(inputs)


register(
    "ActivatedSums",
    functools.partial(activated_sums, native=False),
    ["activation"],
)
register(
    "ActivatedGradient",
    functools.partial(activated_gradient, native=False),
    ["activation"],
)
register(
    "BiasedGradient",
    functools.partial(biased_gradient, native=False),
    ["activation"],
)
