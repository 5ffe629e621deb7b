"""One replica: a model's weights on one device, and what computes with them.

There is no copy of the Keras model. A replica's state is three vectors on its
device, the model is called with their parts in the place of its variables
(`keras.StatelessScope`), and the gradient of a vector's parts is a vector.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import auto_jit_compile
from tf_convpar._compat.keras import is_seed
from tf_convpar._compat.keras import loss_of
from tf_convpar._compat.keras import model_supports_jit
from tf_convpar.machines import cpu_of
from tf_convpar.machines import kind_of
from tf_convpar.placement import consecutive_slices
from tf_convpar.replicas import _equations
from tf_convpar.replicas.packed import Packing
from tf_convpar.strategy.fused_updates import fuse_updates_of


class PackedState:
    """A model's state in vectors, and its step on them, for all replicas.

    Attributes:
        weights: Packing of the trainable weights.
        kept: Packing of other floating-point variables of layers, such as
            moving averages.
        metrics: Packing of the variables of metrics.
        states: The variables of layers that are none of these: states of
            random generators, counters and the like.
    """

    def __init__(self, model: Any, dtype: str) -> None:
        self.model = model
        self.trained = list(model.trainable_variables)
        others = list(model.non_trainable_variables)
        self.averages = [v for v in others if _is_floating(v)]
        self.states = [v for v in others if not _is_floating(v)]
        self.measured = list(model.metrics_variables)
        self.weights = Packing(self.trained, dtype)
        self.kept = Packing(self.averages, "float32")
        self.metrics = Packing(self.measured, "float32")
        # Traced once for all replicas with batches of a size.
        self._step, self._step_by_xla = (
            tf.function(
                self._forward_and_backward, autograph=False, jit_compile=by_xla
            )
            for by_xla in (None, True)
        )

    def step_for(self, device: str) -> Callable[..., Any]:
        """`_forward_and_backward`, as it runs on a device."""
        by_xla = _is_for_xla(self.model, device)
        return self._step_by_xla if by_xla else self._step

    def _forward_and_backward(
        self,
        weights: tf.Tensor,
        kept: tf.Tensor,
        metrics: tf.Tensor,
        states: Sequence[tf.Tensor],
        data: Any,
        part: tf.Tensor,
    ) -> tuple[Any, tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """Gradients, and the state that follows; no variable is touched."""
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            parts = self.weights.unpack(weights)
            tape.watch(parts)
            values = [
                *zip(self.trained, parts, strict=True),
                *zip(self.averages, self.kept.unpack(kept), strict=True),
                *zip(self.states, states, strict=True),
                *zip(self.measured, self.metrics.unpack(metrics), strict=True),
            ]
            with keras.StatelessScope(values, collect_losses=True) as scope:
                y_pred = model(x, training=True)
                loss = loss_of(model, x, y, y_pred, sample_weight)
                samples = tf.shape(keras.tree.flatten(x)[0])[0]
                # The first of a compiled model's metrics is of its loss.
                model.metrics[0].update_state(loss, sample_weight=samples)
                model.compute_metrics(x, y, y_pred, sample_weight)
                scaled = tf.cast(part, loss.dtype) * loss
        gradients = tape.gradient(scaled, parts, unconnected_gradients="zero")
        now = scope.get_current_value
        return (
            gradients,
            self.kept.pack([now(v) for v in self.averages]),
            self.metrics.pack([now(v) for v in self.measured]),
            [now(v) for v in self.states],
        )


class Replica(abc.ABC):
    """What engines and methods ask of a replica.

    Args:
        form: How its state lies in vectors.
        device: Name of the device that messages come from and go to.
        index: Number among all replicas: random states differ by it.

    Attributes:
        weights: `W^i` as a vector on the device, to read and to assign.
        kept: Moving averages and the like, likewise.
        metrics: State of the metrics since the epoch began, likewise.
        states: Variables of other states of layers, one for each of `form`'s.
        batch: Samples of each step.
        data: An iterator on the device; None where the chief feeds.
    """

    weights: Any
    kept: Any
    metrics: Any
    states: list[Any]

    def __init__(self, form: PackedState, device: str, index: int) -> None:
        self.form = form
        self.device = device
        self.index = index
        self.batch = 0
        self.data: Any = None

    @property
    def inner(self) -> list[Any]:
        """Variables of what it remembers besides: slots and random states.

        None of a group of several devices, whose members have them.
        """
        return []

    @abc.abstractmethod
    def gradient(self, data: Any, part: float = 1.0) -> list[Any]:
        """The gradient of a batch's loss at the replica's weights.

        Moving averages, random states and metrics follow. Call it in a graph.

        Args:
            data: What a Keras model's `train_step` gets.
            part: What the gradient is multiplied by. A factor of the loss, it
                costs nothing.

        Returns:
            That of each variable, in shards where those are.
        """

    def packed(self, gradient: Sequence[Any]) -> tf.Tensor:
        """A gradient as a vector like `weights`, on the device."""
        with tf.device(self.device):
            return self.form.weights.pack(_merged(gradient))

    def in_pieces(
        self, gradient: Sequence[Any], sizes: Sequence[int]
    ) -> list[tf.Tensor]:
        """The same in pieces, each as soon as what lies in it is there."""
        with tf.device(self.device):
            return self.form.weights.pieces(_merged(gradient), sizes)

    @abc.abstractmethod
    def weights_in_pieces(self, sizes: Sequence[int]) -> list[tf.Tensor]:
        """The weights in pieces."""

    @abc.abstractmethod
    def assign_pieces(
        self, pieces: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> None:
        """Assigns the weights, which come in pieces."""

    @abc.abstractmethod
    def descend(self, gradient: Sequence[Any], eta: tf.Tensor) -> None:
        """The optimizer's step, in place."""

    @abc.abstractmethod
    def pull(
        self, before: tf.Tensor, centre: tf.Tensor, alpha: tf.Tensor
    ) -> None:
        """Pulls the weights, which have stepped, towards the centre.

        Args:
            before: `W^i` before the step.
            centre: `Wc`.
            alpha: `eta rho`.
        """

    def taken(self, data: Any) -> Any:
        """The batch of a step: what was given, or an iterator's next one."""
        if not isinstance(data, tf.data.Iterator):
            return data
        with tf.device(cpu_of(self.device)):
            return next(data)


class OnOneDevice(Replica):
    """A replica whose state is three vectors on one device.

    Args:
        form: How it lies in vectors.
        device: Name of the device.
        index: Number among all replicas.
        optimizer: A Keras optimizer, of which this gets a copy; None for
            replicas that leave steps to the centre.
    """

    def __init__(
        self, form: PackedState, device: str, index: int, optimizer: Any
    ) -> None:
        super().__init__(form, device, index)
        with tf.device(device):
            self.weights = keras.Variable(
                form.weights.read(form.trained), name=f"replica_{index}"
            )
            self.kept = tf.Variable(form.kept.read(form.averages))
            self.metrics = tf.Variable(form.metrics.read(form.measured))
            self.states = [tf.Variable(apart(v, index)) for v in form.states]
            self.optimizer = optimizer and copied(optimizer, [self.weights])
        self._function = form.step_for(device)

    @property
    def inner(self) -> list[Any]:
        """Those of its optimizer, and of layers such as dropout."""
        slots = self.optimizer.variables if self.optimizer else []
        return [*self.states, *slots]

    def gradient(self, data: Any, part: float = 1.0) -> list[tf.Tensor]:
        """The gradient of each variable's part of the vector."""
        with tf.device(self.device):
            gradients, kept, metrics, states = self._function(
                tf.identity(self.weights.value),
                self.kept.read_value(),
                self.metrics.read_value(),
                [state.read_value() for state in self.states],
                data,
                tf.constant(part, tf.float64),
            )
            self.kept.assign(kept)
            self.metrics.assign(metrics)
            for variable, state in zip(self.states, states, strict=True):
                variable.assign(state)
            return list(gradients)

    def weights_in_pieces(self, sizes: Sequence[int]) -> list[tf.Tensor]:
        """Of one vector."""
        with tf.device(self.device):
            return consecutive_slices(self.weights.value, sizes)

    def assign_pieces(
        self, pieces: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> None:
        """They are one vector."""
        with tf.device(self.device):
            self.weights.assign(tf.concat(pieces, axis=0))

    def descend(self, gradient: Sequence[Any], eta: tf.Tensor) -> None:
        """The optimizer's step, in place."""
        with tf.device(self.device):
            self.optimizer.learning_rate.assign(eta)
            self.optimizer.apply([self.packed(gradient)], [self.weights])

    def pull(
        self, before: tf.Tensor, centre: tf.Tensor, alpha: tf.Tensor
    ) -> None:
        """Equation (1) or (6)."""
        with tf.device(self.device):
            self.weights.assign(
                _equations.pulled(self.weights.value, before, centre, alpha)
            )


def _merged(gradient: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(part) for part in gradient]


def copied(optimizer: Any, variables: Sequence[Any]) -> Any:
    """An optimizer like the one given, for these variables.

    Its learning rate is a variable, whatever that of the given one is: the
    program says at each step what it is.
    """
    config = {
        **optimizer.get_config(),
        "learning_rate": 0.0,
        # Of a loss that is scaled, which a replica's is not.
        "loss_scale_factor": None,
    }
    copy = type(optimizer).from_config(config)
    copy.build(list(variables))
    fuse_updates_of(copy)
    return copy


def _is_for_xla(model: Any, device: str) -> bool:
    """Whether XLA compiles a model's steps on a device.

    With `jit_compile="auto"` it does so on GPUs. Keras, which chooses for this
    program alone, does not see those of other tasks.
    """
    if bool(model.jit_compile) != auto_jit_compile(model):
        return bool(model.jit_compile)
    return kind_of(device) == "GPU" and model_supports_jit(model)


def _is_floating(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def apart(variable: Any, index: int) -> tf.Tensor:
    """The first value of a state that each replica has.

    A random generator's is another one for each: Keras' are (seed, count).
    """
    state = tf.convert_to_tensor(variable)
    if not is_seed(variable):
        return state
    return state + tf.cast([index, 0], state.dtype)
