"""A replica's own part of an exchange: what it sends and what it gets."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.replicas._common_weights import CommonWeights
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import Wire


class Mailbox:
    """A replica's difference from the common weights, and the mean of all.

    ```python
    box.fill(fragment)
    ...  # the differences of all become `box.mean`
    box.use(fragment, eta=0.7, kept=0.0)
    ```

    Both are variables on the replica's device: what a function returns would
    come to the chief. They know nothing of other replicas, so that they stay
    when one of these is lost.

    Args:
        replica: It learns by itself.
        common: The common weights, as it has them.
        wire: How differences travel.

    Attributes:
        difference: `Wc - W^i` of a fragment, when it was last filled.
        mean: That of all replicas, by samples.
    """

    def __init__(
        self, replica: Replica, common: CommonWeights, wire: Wire
    ) -> None:
        self._replica, self._common = replica, common
        with tf.device(replica.device):
            zeros = tf.zeros([common.length])
            self.difference = tf.Variable(zeros)
            self.mean = tf.Variable(zeros)
            # Of each fragment what rounding has left of its differences.
            self._left = [
                tf.Variable(zeros)
                for _ in range(0 if wire.is_exact else len(common.pieces))
            ]
        self._fill = tf.function(self._fill_in_graph, autograph=False)
        self._use = tf.function(self._use_in_graph, autograph=False)

    def trace(self, fragment: int) -> None:
        """Makes a fragment's functions: tracing is not safe for threads."""
        rate = tf.TensorSpec([], tf.float32)
        self._fill.get_concrete_function(fragment)
        self._use.get_concrete_function(rate, rate, fragment)

    def fill(self, fragment: int) -> None:
        """Takes the difference, as it is now."""
        with step():
            self._fill(fragment).numpy()

    def use(self, fragment: int, eta: float, kept: float) -> None:
        """Steps the common weights with the mean, and moves to them.

        Args:
            fragment: Its number.
            eta: The outer learning rate.
            kept: How much the replica keeps of its own weights (`m`).
        """
        rates = (tf.constant(eta, tf.float32), tf.constant(kept, tf.float32))
        with step():
            self._use(*rates, fragment).numpy()

    def rounding(
        self, fragment: int, sizes: Sequence[int]
    ) -> list[VariablePart] | None:
        """What rounding has left of each piece; None if it leaves nothing."""
        if not self._left:
            return None
        parts, begin = [], 0
        for size in sizes:
            parts.append(VariablePart(self._left[fragment], begin, size))
            begin += size
        return parts

    def _fill_in_graph(self, fragment: int) -> tf.Tensor:
        with tf.device(self._replica.device):
            before = self._common.piece(fragment)
            _, now, _ = self._around(fragment)
            self.difference.assign(tf.cast(before - now, tf.float32))
        # What is returned waits for all that is assigned.
        return tf.constant(True)

    def _use_in_graph(
        self, eta: tf.Tensor, kept: tf.Tensor, fragment: int
    ) -> tf.Tensor:
        common, weights = self._common, self._replica.weights
        with tf.device(self._replica.device):
            mean = self.mean.read_value()
            common.outer_step(fragment, mean, tf.identity(eta))
            after = common.piece(fragment)
            left, own, right = self._around(fragment)
            keeps = tf.cast(kept, own.dtype)
            own = keeps * own + (1 - keeps) * after
            moved = tf.concat([left, own, right], axis=0)
            weights.assign(moved[: common.form.weights.size])
        return tf.constant(True)

    def _around(self, fragment: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The replica's weights before a fragment, in it and behind it."""
        length = self._common.length
        value = tf.identity(self._replica.weights.value)
        vector = self._common.filled(value)
        begin, end = fragment * length, (fragment + 1) * length
        return vector[:begin], vector[begin:end], vector[end:]


class VariablePart:
    """A part of a variable that is read and assigned as a variable is.

    Args:
        variable: It has one axis.
        begin: The part's first value.
        size: How many there are.
    """

    def __init__(self, variable: tf.Variable, begin: int, size: int) -> None:
        self._variable, self._part = variable, slice(begin, begin + size)

    def read_value(self) -> tf.Tensor:
        """The values, as they are now."""
        return self._variable.read_value()[self._part]

    def assign(self, values: tf.Tensor) -> None:
        """Replaces the values."""
        self._variable[self._part].assign(values)
