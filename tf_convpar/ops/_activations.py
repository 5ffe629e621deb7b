"""Activations that follow a normalization in one op, and their derivatives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation, in TensorFlow's ops.

    Attributes:
        value: The function itself.
        slope: Its derivative.
    """

    value: Callable[[tf.Tensor], tf.Tensor]
    slope: Callable[[tf.Tensor], tf.Tensor]


def _silu_slope(u: tf.Tensor) -> tf.Tensor:
    gate = tf.sigmoid(u)
    return gate + u * gate * (1 - gate)


def _gelu_slope(u: tf.Tensor) -> tf.Tensor:
    distribution = 0.5 * (1 + tf.math.erf(u / math.sqrt(2)))
    return distribution + u * tf.exp(-u * u / 2) / math.sqrt(2 * math.pi)


ACTIVATIONS = {
    "linear": Activation(tf.identity, tf.ones_like),
    "relu": Activation(tf.nn.relu, lambda u: tf.cast(u > 0, u.dtype)),
    "relu6": Activation(
        tf.nn.relu6, lambda u: tf.cast((u > 0) & (u < 6), u.dtype)
    ),
    "silu": Activation(lambda u: u * tf.sigmoid(u), _silu_slope),
    "gelu": Activation(tf.nn.gelu, _gelu_slope),
}
