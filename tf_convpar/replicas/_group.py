"""A replica with a model of its own, which a group of devices may split.

It is the parallel form of the user's, in a strategy whose chief device is the
group's first. Kernels stay in shards where they are, or whole where the group
is one device, with the algorithm that `parallelize` gives them; what is
exchanged with the centre is one vector on the first device all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import loss_of
from tf_convpar._compat.keras import stored
from tf_convpar.replicas.packed import Packing
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.replica import apart
from tf_convpar.replicas.replica import copied
from tf_convpar.sharding import parallelize
from tf_convpar.strategy.strategy import ConvParallelStrategy


class Group(Replica):
    """A replica whose model is split over several devices, or made for one.

    Args:
        form: How its state lies in vectors.
        devices: Names of the devices. What is not split is on the first.
        index: Number among all replicas.
        optimizer: A Keras optimizer, of which this gets a copy; None for
            replicas that leave steps to the centre.
        plan: Plan of the split, as `parallelize` takes it.
        algorithm: Of convolutions, as `parallelize` takes it.
        sample: Data of a few samples, by which metrics are built.

    Attributes:
        model: The parallel model.
    """

    def __init__(
        self,
        form: PackedState,
        devices: Sequence[str],
        index: int,
        optimizer: Any,
        plan: Any,
        algorithm: str | None,
        sample: tuple[Any, ...],
    ) -> None:
        super().__init__(form, devices[0], index)
        self._strategy = ConvParallelStrategy(
            devices=devices, chief_device=self.device
        )
        with self._strategy.scope():
            self.model = parallelize(
                form.model, plan, algorithm=algorithm, verbose=False
            )
            self.model.test_on_batch(*sample)
            self.optimizer = optimizer and copied(
                optimizer, self.model.trainable_variables
            )
        state = PackedState(self.model, form.weights.dtype)
        self.states = state.states
        for variable in self.states:
            variable.assign(apart(variable, index))
        self._is_one_device = len(devices) == 1
        self.weights = _Joined(form.weights, state.trained, self.device)
        self.kept = _Joined(form.kept, state.averages, self.device)
        self.metrics = _Joined(form.metrics, state.measured, self.device)

    @property
    def inner(self) -> list[Any]:
        """Those of its optimizer, and of layers, where it is one device."""
        if not self._is_one_device:
            return []
        slots = self.optimizer.variables if self.optimizer else []
        return [*self.states, *slots]

    def gradient(self, data: Any, part: float = 1.0) -> list[Any]:
        """The gradient of each variable, in shards where those are."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        model, variables = self.model, self.model.trainable_variables
        with self._strategy.extended.replica():
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = loss_of(model, x, y, y_pred, sample_weight)
                scaled = part * loss
            gradients = tape.gradient(scaled, variables)
            samples = tf.shape(keras.tree.flatten(x)[0])[0]
            # The first of a compiled model's metrics is of its loss.
            model.metrics[0].update_state(loss, sample_weight=samples)
            model.compute_metrics(x, y, y_pred, sample_weight)
            return [
                tf.zeros(v.shape, v.dtype) if gradient is None else gradient
                for v, gradient in zip(variables, gradients, strict=True)
            ]

    def weights_in_pieces(self, sizes: Sequence[int]) -> list[tf.Tensor]:
        """Each as soon as its variables are on the first device."""
        return self.weights.pieces(sizes)

    def assign_pieces(
        self, pieces: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> None:
        """Each variable as soon as all of it is there."""
        self.weights.assign_pieces(pieces, sizes)

    def descend(self, gradient: Sequence[Any], eta: tf.Tensor) -> None:
        """The optimizer's step, of each shard where it is."""
        with self._strategy.extended.replica():
            self.optimizer.learning_rate.assign(eta)
            self.optimizer.apply(gradient, self.model.trainable_variables)

    def pull(
        self, before: tf.Tensor, centre: tf.Tensor, alpha: tf.Tensor
    ) -> None:
        """Equation (1) or (6); only the difference goes to the shards."""
        with tf.device(self.device):
            difference = alpha * (before - centre)
            self.weights.assign_sub(difference)


class _Joined:
    """Variables, some of them in shards, as one vector on a device."""

    def __init__(
        self, packing: Packing, variables: Sequence[Any], device: str
    ) -> None:
        self._packing = packing
        self._variables = variables
        self._device = device

    @property
    def value(self) -> tf.Tensor:
        with tf.device(self._device):
            return self._packing.read(self._variables)

    def read_value(self) -> tf.Tensor:
        return self.value

    def pieces(self, sizes: Sequence[int]) -> list[tf.Tensor]:
        with tf.device(self._device):
            values = [tf.convert_to_tensor(v) for v in self._variables]
            return self._packing.pieces(values, sizes)

    def assign(self, vector: tf.Tensor) -> None:
        self.assign_pieces([vector], [self._packing.size])

    def assign_pieces(
        self, pieces: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> None:
        with tf.device(self._device):
            values = self._packing.of_pieces(pieces, sizes)
            for variable, value in zip(self._variables, values, strict=True):
                variable.assign(value)

    def assign_sub(self, vector: tf.Tensor) -> None:
        with tf.device(self._device):
            values = self._packing.unpack(vector)
            for variable, value in zip(self._variables, values, strict=True):
                # Keras' own would read it first.
                stored(variable).assign_sub(value)
