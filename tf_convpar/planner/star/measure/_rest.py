"""Measures what a step costs beside its convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import Functional
from tf_convpar.planner.measure import noise
from tf_convpar.planner.measure._clock import Clock


def rest_s(
    model: keras.Model,
    names: Collection[str],
    batch: int,
    device: str,
    clock: Clock,
) -> float:
    """Seconds of a training step in which convolutions cost nothing.

    ```python
    rest_s(model, {"conv2d", "conv2d_1"}, 64, "/device:CPU:0", Clock())
    ```

    This trains a copy of the model on `device` alone. Its convolutions give
    feature maps of zeros that exist already, and pass on gradients of zeros.
    Activations are no part of a convolution, and are timed.

    Args:
        model: Sequential or functional model. If it is not compiled, SGD and a
            mean squared error are assumed.
        names: Names of the convolutions that are left out.
        batch: Images in a step.
        device: Name of the device that runs the step.
        clock: Clock that takes the time.

    Raises:
        ValueError: The model is neither sequential nor functional.
    """
    if not isinstance(model, keras.Sequential | Functional):
        raise ValueError(
            "Expected a Sequential or functional model: only such a model can "
            f"be taken apart. Received: {type(model).__name__}. Make a "
            "functional one of the same layers: keras.Model(inputs, outputs)."
        )

    with tf.device(device):
        copy = hollow_copy(model, names, batch)
        x = noise(copy, batch)
        y = _targets(copy, batch)
        iterator = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
        copy.make_train_function()

        def run() -> None:
            _wait(copy.train_function(iterator))

        return clock.time(run, "rest of the network")


def hollow_copy(
    model: keras.Model, names: Collection[str], batch: int
) -> keras.Model:
    """A copy of a model with other weights, without some convolutions."""

    def hollow(layer: Any) -> Any:
        if layer.name in names:
            return Hollow(layer, batch)
        return layer.__class__.from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=hollow)
    _compile_like(copy, model)
    return copy


class Hollow(keras.layers.Layer):
    """A convolution that costs nothing: the same zeros, forward and back."""

    def __init__(self, layer: Any, batch: int) -> None:
        super().__init__()
        self._output_shape = tuple(layer.output.shape[1:])
        self._activation = layer.activation
        # Variables are read where they are: to make zeros would cost time.
        self._maps = tf.Variable(
            tf.zeros((batch, *layer.output.shape[1:]), layer.compute_dtype),
            trainable=False,
        )
        self._gradient = tf.Variable(
            tf.zeros((batch, *layer.input.shape[1:]), layer.compute_dtype),
            trainable=False,
        )
        self.supports_jit = False

    def call(self, inputs: Any) -> Any:
        """The activation of feature maps of zeros."""

        @tf.custom_gradient
        def skip(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
            return tf.convert_to_tensor(self._maps), self._back

        maps = skip(inputs)
        return maps if self._activation is None else self._activation(maps)

    def _back(self, upstream: tf.Tensor) -> tf.Tensor:
        # Depends on `upstream`, which would not be computed otherwise.
        with tf.control_dependencies([upstream]):
            return tf.identity(self._gradient)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """The shape and dtype of the convolution's feature maps."""
        return keras.KerasTensor(
            (inputs.shape[0], *self._output_shape), self.compute_dtype
        )


def _compile_like(copy: keras.Model, model: keras.Model) -> None:
    if not model.compiled:
        warnings.warn(
            "The model is not compiled: SGD and a mean squared error are "
            "assumed for the time of a step.",
            stacklevel=4,
        )
        copy.compile("sgd", "mse", jit_compile=False)
        return
    config = model.get_compile_config()
    copy.compile_from_config({**config, "jit_compile": False})


def _targets(copy: keras.Model, batch: int) -> Any:
    """Targets of zeros: classes for sparse losses, else like the outputs."""
    name = getattr(copy.loss, "name", None) or str(copy.loss)
    sparse = "sparse" in name.lower()
    made = [
        np.zeros((batch, *tensor.shape[1:-1]), "int32")
        if sparse
        else np.zeros((batch, *tensor.shape[1:]), "float32")
        for tensor in copy.outputs
    ]
    return made[0] if len(made) == 1 else tuple(made)


def _wait(logs: Any) -> None:
    """Waits until the step's results are there."""
    for value in tf.nest.flatten(logs):
        if isinstance(value, tf.Tensor):
            value.numpy()
