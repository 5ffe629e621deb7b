"""`predict` on one device, without ops on weights alone in each step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import Attached
from tf_convpar.sharding._weight_hoisting import HoistedFunction


def hoist_weights_in_predict(model: keras.Model) -> None:
    """Lets `predict` compute once what depends on weights alone.

    A model that makes the function of a step in a way of its own keeps it.
    """
    if not _has_own(model, "make_predict_function"):
        model.make_predict_function = MakePredictFunction(model)


def _has_own(model: keras.Model, method: str) -> bool:
    of_keras = getattr(keras.Model, method)
    return method in vars(model) or getattr(type(model), method) is not of_keras


class MakePredictFunction(Attached):
    """Replaces `make_predict_function`: `predict` keeps what is of weights.

    ```python
    model.make_predict_function = MakePredictFunction(model)
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
            left_to_keras = (
                not ops.load() or model.run_eagerly or model.jit_compile
            )
            if not left_to_keras and model.steps_per_execution == 1:
                model.predict_function = _PredictFunction(
                    model.predict_function,
                    own_step=_has_own(model, "predict_step"),
                )
        return model.predict_function


class _PredictFunction:
    """Keras' function for the images of one step, with hoisted weights.

    Args:
        function: The `tf.function`, which takes a list of one step's data.
        own_step: Whether the model has a step of its own, which is given the
            data as they are. Images alone and a tuple of them are the same to
            Keras' step.
    """

    def __init__(self, function: Any, own_step: bool) -> None:
        self._function = function
        self._own_step = own_step
        # By the types and shapes of inputs; and by names of functions, which
        # may be for several. None stands for a function that stays whole.
        self._by_inputs: dict[Any, HoistedFunction | None] = {}
        self._by_name: dict[Any, HoistedFunction | None] = {}

    def __call__(self, data: Any) -> Any:
        (step,) = data
        packed = isinstance(step, tuple)
        inputs = tuple(
            tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
            for x in (step if packed else (step,))
        )
        packed |= not self._own_step
        dense = all(isinstance(x, tf.Tensor) for x in inputs)
        if not (dense and tf.executing_eagerly()):
            return self._function(data)
        key = packed, *((x.dtype, *x.shape) for x in inputs)
        if key not in self._by_inputs:
            step_data = inputs if packed else inputs[0]
            self._by_inputs[key] = self._hoisted(step_data)
        hoisted = self._by_inputs[key]
        return self._function(data) if hoisted is None else hoisted(*inputs)

    def _hoisted(self, step: Any) -> HoistedFunction | None:
        function = self._function.get_concrete_function([step])
        if function.name not in self._by_name:
            self._by_name[function.name] = HoistedFunction.of(function)
        return self._by_name[function.name]
