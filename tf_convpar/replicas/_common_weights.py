"""The weights that replicas agree on, as each of them has them."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import on_device
from tf_convpar.replicas._centre import Centre
from tf_convpar.replicas._replica import PackedState
from tf_convpar.replicas._replica import copied
from tf_convpar.replicas._wire import BLOCK


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
        self.form = form
        self.device = device
        values = form.weights.size
        self.length = -(-values // (fragments * BLOCK)) * BLOCK
        with tf.device(device):
            self.steps = tf.Variable(tf.zeros([fragments], tf.int64))
            self._fragments = [
                keras.Variable(part, name=f"fragment_{i}")
                for i, part in enumerate(
                    tf.split(
                        self.filled(form.weights.read(form.trained)), fragments
                    )
                )
            ]
            self._outer = [copied(outer, [part]) for part in self._fragments]

    def filled(self, vector: tf.Tensor) -> tf.Tensor:
        """A vector with zeros behind it, up to the end of the last fragment."""
        missing = self.length * len(self) - self.form.weights.size
        return tf.pad(vector, [[0, missing]])

    def __len__(self) -> int:
        return int(self.steps.shape[0])

    def fragment(self, index: int) -> tf.Tensor:
        """A fragment as it is now."""
        with tf.device(self.device):
            return tf.identity(self._fragments[index].value)

    def value(self) -> tf.Tensor:
        """`Wc` as it is now."""
        with tf.device(self.device):
            parts = [part.value for part in self._fragments]
            return tf.concat(parts, axis=0)[: self.form.weights.size]

    def assign(self, vector: tf.Tensor) -> None:
        """Replaces `Wc`; the outer optimizers' slots stay."""
        with tf.device(self.device):
            parts = tf.split(self.filled(tf.identity(vector)), len(self))
            for variable, part in zip(self._fragments, parts, strict=True):
                variable.assign(part)

    def outer_step(
        self, index: int, gradient: tf.Tensor, eta: tf.Tensor
    ) -> None:
        """A step of a fragment's outer optimizer."""
        variable, optimizer = self._fragments[index], self._outer[index]
        with tf.device(self.device):
            optimizer.learning_rate.assign(eta)
            optimizer.apply([tf.cast(gradient, variable.dtype)], [variable])
            self.steps.assign_add(tf.one_hot(index, len(self), dtype=tf.int64))

    def take_over(self, other: CommonWeights) -> None:
        """Becomes as another replica's: weights, slots and counts."""
        for target, source in zip(
            self._variables(), other._variables(), strict=True
        ):
            with tf.device(other.device):
                value = tf.convert_to_tensor(source)
            with tf.device(self.device):
                target.assign(on_device(tf.identity, self.device)(value))

    def _variables(self) -> list[Any]:
        slots = [v for own in self._outer for v in own.variables]
        return [self.steps, *self._fragments, *slots]
