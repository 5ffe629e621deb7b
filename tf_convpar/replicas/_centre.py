"""The centre: the weights that replicas agree on, and that are saved."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.replicas._replica import PackedState
from tf_convpar.replicas._replica import copied


class Centre:
    """`Wc` on one device.

    Args:
        form: How a model's weights lie in a vector.
        device: Name of the device.
        optimizer: A Keras optimizer, of which this gets a copy; None where
            steps are the replicas'.

    Attributes:
        weights: `Wc`, a Keras variable.
        optimizer: That of the centre, or None.
    """

    def __init__(
        self, form: PackedState, device: str, optimizer: Any = None
    ) -> None:
        self.form = form
        self.device = device
        with tf.device(device):
            self.weights = keras.Variable(
                form.weights.read(form.trained), name="centre"
            )
            self.optimizer = optimizer and copied(optimizer, [self.weights])

    def value(self) -> tf.Tensor:
        """`Wc` as it is now."""
        with tf.device(self.device):
            return tf.identity(self.weights.value)

    def assign(self, vector: tf.Tensor) -> None:
        """Replaces `Wc`."""
        with tf.device(self.device):
            self.weights.assign(vector)

    def descend(self, gradient: tf.Tensor, eta: tf.Tensor) -> None:
        """A step of the centre's optimizer."""
        with tf.device(self.device):
            self.optimizer.learning_rate.assign(eta)
            self.optimizer.apply([gradient], [self.weights])

    def write(self) -> None:
        """Assigns `Wc` to the model's own variables."""
        self.form.weights.write(self.value(), self.form.trained)
