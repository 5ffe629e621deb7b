"""`predict` on one device, with few ops beside those on images."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import Attached
from tf_convpar.sharding._divided import Divided


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
                model.predict_function = _Predict(model.predict_function)
        return model.predict_function


class _Predict:
    """Keras' function of the images of one step, of which weights are apart.

    Args:
        function: The `tf.function`, which takes a list of one step's data.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        # By the types and shapes of inputs; and by names of functions, which
        # may be for several. None stands for a function that stays whole.
        self._known: dict[Any, Divided | None] = {}
        self._made: dict[Any, Divided | None] = {}

    def __call__(self, data: Any) -> Any:
        (step,) = data
        inputs = tuple(
            tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x
            for x in (step if isinstance(step, tuple) else (step,))
        )
        dense = all(isinstance(x, tf.Tensor) for x in inputs)
        if not (dense and tf.executing_eagerly()):
            return self._function(data)
        key = tuple((x.dtype, *x.shape) for x in inputs)
        if key not in self._known:
            self._known[key] = self._divided(inputs)
        divided = self._known[key]
        return self._function(data) if divided is None else divided(*inputs)

    def _divided(self, inputs: tuple[tf.Tensor, ...]) -> Divided | None:
        # Images alone and a tuple of them are the same to Keras.
        function = self._function.get_concrete_function([inputs])
        if function.name not in self._made:
            self._made[function.name] = Divided.of(function)
        return self._made[function.name]
