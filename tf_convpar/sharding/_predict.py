"""`predict` on one device, with few ops beside those on images."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import Attached
from tf_convpar.sharding._weight_hoisting import Divided


def divide_predictions(model: keras.Model) -> None:
    """Lets `predict` do once what is of weights alone.

    A model that makes the function of a step in a way of its own keeps it.
    """
    if not _has_own(model, "make_predict_function"):
        model.make_predict_function = Predicts(model)


def _has_own(model: keras.Model, method: str) -> bool:
    of_keras = getattr(keras.Model, method)
    return method in vars(model) or getattr(type(model), method) is not of_keras


class Predicts(Attached):
    """Takes the place of a model's `make_predict_function`.

    ```python
    model.make_predict_function = Predicts(model)
    ```

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model

    def __call__(self, force: bool = False) -> Any:
        """Makes Keras' function, and puts this package's in its place."""
        model = self._model
        if model.predict_function is None or force:
            type(model).make_predict_function(model, force)
            whole = not ops.load() or model.run_eagerly or model.jit_compile
            if not whole and model.steps_per_execution == 1:
                model.predict_function = _Predict(
                    model.predict_function, own=_has_own(model, "predict_step")
                )
        return model.predict_function


class _Predict:
    """Keras' function of the images of one step, of which weights are apart.

    Args:
        function: The `tf.function`, which takes a list of one step's data.
        own: Whether it is told of the data as they are. Images alone and a
            tuple of them are the same to Keras' own step.
    """

    def __init__(self, function: Any, own: bool) -> None:
        self._function = function
        self._own = own
        # By the types and shapes of inputs; and by names of functions, which
        # may be for several. None stands for a function that stays whole.
        self._known: dict[Any, Divided | None] = {}
        self._made: dict[Any, Divided | None] = {}

    def __call__(self, data: Any) -> Any:
        (step,) = data
        packed = isinstance(step, tuple)
        inputs = tuple(
            tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
            for x in (step if packed else (step,))
        )
        packed |= not self._own
        dense = all(isinstance(x, tf.Tensor) for x in inputs)
        if not (dense and tf.executing_eagerly()):
            return self._function(data)
        key = packed, *((x.dtype, *x.shape) for x in inputs)
        if key not in self._known:
            given = inputs if packed else inputs[0]
            self._known[key] = self._divided(given)
        divided = self._known[key]
        return self._function(data) if divided is None else divided(*inputs)

    def _divided(self, step: Any) -> Divided | None:
        function = self._function.get_concrete_function([step])
        if function.name not in self._made:
            self._made[function.name] = Divided.of(function)
        return self._made[function.name]
