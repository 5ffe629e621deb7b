"""Batch normalization on several devices, by the moments of all their maps.

`with_moments` is the beginning of a normalization on one device, `combined` its
end; between them devices exchange a row of moments. In the gradient they
exchange a row of sums, which is added up on its way. The gradient of `combined`
gives `with_moments` the gradients of the result as they came, through no
activation, and these sums; that makes the derivatives of both, in one pass over
the maps. Where several results are made of one normalization, gradients pass
through the activations first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.sharding._normalized_sums import Exchange
from tf_convpar.sharding._normalized_sums import Statistics
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding._normalized_sums import derivatives
from tf_convpar.sharding._normalized_sums import gradients_of


def with_moments(
    x: tf.Tensor,
    weights: Sequence[tf.Tensor],
    names: Sequence[str],
    epsilon: float,
    exchange: Exchange,
    number: int,
    gives_weight_gradients: bool,
    device: str,
    axis: int = -1,
) -> list[tf.Tensor]:
    """Feature maps and their moments, to be normalized by those of all devices.

    Args:
        x: The maps on one device.
        weights: Gamma and beta, as far as there are.
        names: Their names.
        epsilon: As for `Statistics`.
        exchange: State that devices share.
        number: The number of this device.
        gives_weight_gradients: Whether gradients by the weights, which all
            devices know, come from this one.
        device: Name of this device.
        axis: The channel axis.

    Returns:
        The maps, their moments, and the weights. Maps and weights may go to
        `combined` and nowhere else.
    """
    native = ops.native_on("ScaleChannels", device)

    def differentiated(x: tf.Tensor) -> list[tf.Tensor]:
        moments = ops.channel_moments(x, axis, native=False)
        return [tf.identity(x), moments]

    @tf.custom_gradient
    def run(x: tf.Tensor, *weights: tf.Tensor) -> Any:
        moments = ops.channel_moments(x, axis, native=native)

        def gradient(
            dy: tf.Tensor, by_moments: tf.Tensor, *by_weights: tf.Tensor
        ) -> Sequence[tf.Tensor | None]:
            with tf.device(device):
                if exchange.is_exact():
                    upstream = [dy, by_moments]
                    (dx,) = derivatives(differentiated, [x], upstream)
                    return dx, *by_weights
                moments = exchange.moments[number]
                statistics = Statistics(
                    moments, epsilon, True, tuple(names), exchange
                )
                one_of_n = tf.cast(exchange.one_of_n[number], x.dtype)
                # As results are: what scales them is not computed again.
                term = Term(x, tuple(outputs[2:]), statistics)
                dx, *weight_gradients = gradients_of(
                    *(term, dy, by_moments, one_of_n / _pixels(x, axis)),
                    *(exchange.pending, axis, native),
                )
                ops.leave_balanced(dx)
                return dx, *(
                    weight_gradients
                    if gives_weight_gradients
                    else [None] * len(weight_gradients)
                )

        return (tf.identity(x), moments, *map(tf.identity, weights)), gradient

    with tf.device(device):
        outputs: list[tf.Tensor] = list(run(x, *weights))
    return outputs


def moments_of_all(
    rows: Sequence[tf.Tensor],
    fractions: tf.Tensor,
    exchange: Exchange,
    native: bool | None = None,
) -> tf.Tensor:
    """Moments of all maps, from those of the maps on each device.

    Args:
        rows: Moments `(2, channels)` of each device's maps.
        fractions: Which part of all maps each device has, `(devices,)`.
        exchange: State that devices share.
        native: As for `ops.scale_channels`.
    """

    @tf.custom_gradient
    def run(*rows: tf.Tensor) -> Any:
        def gradient(by_moments: tf.Tensor) -> Sequence[tf.Tensor]:
            if exchange.is_exact():
                return derivatives(
                    lambda *rows: ops.merged_moments(
                        fractions, rows, native=False
                    ),
                    rows,
                    by_moments,
                )
            return [by_moments] * len(rows)

        moments = ops.merged_moments(
            fractions, rows, give_way=True, native=native
        )
        return moments, gradient

    merged: tf.Tensor = run(*rows)
    return merged


def _pixels(x: tf.Tensor, axis: int) -> Any:
    """Count of numbers in a channel of a sample."""
    sizes = [n for i, n in enumerate(x.shape) if i not in (0, axis % x.ndim)]
    if None not in sizes:
        return max(1, math.prod(sizes))
    samples = tf.shape(x, tf.int64)[0]
    numbers = tf.size(x, tf.int64) // (samples * x.shape[axis])
    return tf.cast(tf.maximum(numbers, 1), x.dtype)
