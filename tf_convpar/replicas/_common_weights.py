"""The weights that replicas agree on, as each of them has them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_convpar.placement import fragment_values
from tf_convpar.placement import on_device
from tf_convpar.replicas.centre import Centre
from tf_convpar.replicas.replica import PackedState


class CommonWeights(Centre):
    """`Wc` in fragments, each with an outer optimizer that steps it.

    Every replica has all of them, and steps them with the same mean: nobody's
    death takes anything away.

    Args:
        form: How a model's weights lie in a vector.
        device: Name of the device.
        outer: A Keras optimizer, of which each fragment gets a copy.
        fragments: How many there are, all of one length.

    Attributes:
        length: Values of a fragment: the last one is filled up with zeros.
        steps: How often each fragment was stepped.
    """

    def __init__(
        self, form: PackedState, device: str, outer: Any, fragments: int
    ) -> None:
        values = form.weights.size
        self.length = fragment_values(values, fragments)
        super().__init__(form, [device] * fragments, outer)
        with tf.device(device):
            self.steps = tf.Variable(tf.zeros([fragments], tf.int64))

    def filled(self, vector: tf.Tensor) -> tf.Tensor:
        """A vector with zeros behind it, up to the end of the last fragment."""
        missing = self.length * len(self.devices) - self.form.weights.size
        return tf.pad(vector, [[0, missing]])

    def outer_step(
        self, index: int, gradient: tf.Tensor, eta: tf.Tensor
    ) -> None:
        """A step of a fragment's outer optimizer."""
        self.descend(gradient, eta, index)
        with tf.device(self.device):
            self.steps.assign_add(
                tf.one_hot(index, len(self.pieces), dtype=tf.int64)
            )

    def take_over(self, other: CommonWeights) -> None:
        """Becomes as another replica's: weights, slots and counts."""
        for target, source in zip(
            self.variables(), other.variables(), strict=True
        ):
            with tf.device(other.device):
                value = tf.convert_to_tensor(source)
            with tf.device(self.device):
                target.assign(on_device(tf.identity, self.device)(value))

    def variables(self) -> list[Any]:
        """Counts, weights and slots: all of its state."""
        slots = [v for own in self.optimizers for v in own.variables]
        return [self.steps, *self.pieces, *slots]
