"""The centre: the weights that replicas agree on, and that are saved."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.machines import task_of
from tf_convpar.placement import consecutive_slices
from tf_convpar.placement import piece_sizes
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.replica import copied


class Centre:
    """`Wc`, in a piece on each of some devices.

    Args:
        form: How a model's weights lie in a vector.
        devices: Names of the devices, one for each piece.
        optimizer: A Keras optimizer, of which each piece gets a copy; None
            where steps are the replicas'.
        sizes: Values of each piece; None for as many in each.

    Attributes:
        device: That of the first piece.
        sizes: Values of each piece.
        pieces: Keras variables, one behind another.
        optimizers: Those of the pieces, or none.
    """

    def __init__(
        self,
        form: PackedState,
        devices: Sequence[str],
        optimizer: Any = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.form = form
        self.devices = list(devices)
        self.device = self.devices[0]
        self.pieces: list[keras.Variable] = []
        self.optimizers: list[Any] = []
        values = self.filled(form.weights.read(form.trained))
        count = int(values.shape[0])
        self.sizes = list(sizes or piece_sizes(count, len(self.devices)))
        for device, value in zip(self.devices, self.cut(values), strict=True):
            with tf.device(device):
                piece = keras.Variable(value, name="centre")
                if optimizer is not None:
                    self.optimizers.append(copied(optimizer, [piece]))
            self.pieces.append(piece)

    def cut(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """A vector in pieces."""
        return consecutive_slices(vector, self.sizes)

    def filled(self, vector: tf.Tensor) -> tf.Tensor:
        """A vector of all weights, as long as all pieces."""
        return vector

    def piece(self, index: int) -> tf.Tensor:
        """A piece as it is now, where it is."""
        with tf.device(self.devices[index]):
            return tf.identity(self.pieces[index].value)

    def value(self) -> tf.Tensor:
        """`Wc` as it is now, on the first piece's device."""
        parts = [self.piece(index) for index in range(len(self.pieces))]
        with tf.device(self.device):
            vector = tf.concat(parts, axis=0) if len(parts) > 1 else parts[0]
            return vector[: self.form.weights.size]

    def assign(self, vector: tf.Tensor) -> None:
        """Replaces `Wc`."""
        with tf.device(self.device):
            parts = self.cut(self.filled(tf.identity(vector)))
        for device, piece, part in zip(
            self.devices, self.pieces, parts, strict=True
        ):
            with tf.device(device):
                piece.assign(part)

    def descend(
        self, gradient: tf.Tensor, eta: tf.Tensor, index: int = 0
    ) -> None:
        """A step of a piece's optimizer."""
        piece, optimizer = self.pieces[index], self.optimizers[index]
        with tf.device(self.devices[index]):
            optimizer.learning_rate.assign(tf.identity(eta))
            optimizer.apply([tf.cast(gradient, piece.dtype)], [piece])

    def write(self) -> None:
        """Assigns `Wc` to the model's own variables."""
        self.form.weights.write(self.value(), self.form.trained)

    def take_slots(
        self, other: Centre, absent: Collection[tuple[str, int]]
    ) -> None:
        """Optimizers go on with what is left of another centre's slots.

        Args:
            other: It had the same weights in other pieces.
            absent: Tasks that are lost, and what they had with them: slots
                begin at zero there.
        """
        survives = [task_of(device) not in absent for device in other.devices]
        if not any(survives):
            return
        for slot in range(
            len(self.optimizers and self.optimizers[0].variables)
        ):
            slots = [o.variables[slot] for o in self.optimizers]
            old_slots = [o.variables[slot] for o in other.optimizers]
            if slots[0].shape == ():
                value = tf.convert_to_tensor(old_slots[survives.index(True)])
                for variable in slots:
                    variable.assign(value)
                continue
            with tf.device(self.device):
                parts = [
                    tf.convert_to_tensor(v)
                    if survived
                    else tf.zeros(v.shape, v.dtype)
                    for v, survived in zip(old_slots, survives, strict=True)
                ]
                vector = tf.concat(parts, axis=0)
            for variable, part in zip(slots, self.cut(vector), strict=True):
                variable.assign(part)
