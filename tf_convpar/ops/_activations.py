"""Activations that follow a normalization in one op, and their derivatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation, in TensorFlow's ops.

    Attributes:
        value: What it returns.
        slope: Its derivative at what it is given.
    """

    value: Callable[[tf.Tensor], tf.Tensor]
    slope: Callable[[tf.Tensor], tf.Tensor]


def _silu_slope(u: tf.Tensor) -> tf.Tensor:
    gate = tf.sigmoid(u)
    return gate + u * gate * (1 - gate)


ACTIVATIONS = {
    "linear": Activation(tf.identity, tf.ones_like),
    "relu": Activation(tf.nn.relu, lambda u: tf.cast(u > 0, u.dtype)),
    "relu6": Activation(
        tf.nn.relu6, lambda u: tf.cast((u > 0) & (u < 6), u.dtype)
    ),
    "silu": Activation(lambda u: u * tf.sigmoid(u), _silu_slope),
}
