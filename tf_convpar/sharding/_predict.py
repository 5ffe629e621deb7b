"""`predict` on one device, with few ops beside those on images."""

from __future__ import annotations

from typing import Any

import keras
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
        # By the types and shapes of inputs; and by functions, which may be
        # for several. None stands for a function that stays whole.
        self._known: dict[Any, Divided | None] = {}
        self._made: dict[int, tuple[Any, Divided | None]] = {}

    def __call__(self, data: Any) -> Any:
        (step,) = data
        inputs = step if isinstance(step, tuple) else (step,)
        dense = all(isinstance(x, tf.Tensor) for x in inputs)
        if not (dense and tf.executing_eagerly()):
            return self._function(data)
        key = tuple((x.dtype, *x.shape) for x in inputs)
        if key not in self._known:
            self._known[key] = self._divided(data)
        divided = self._known[key]
        return self._function(data) if divided is None else divided(*inputs)

    def _divided(self, data: Any) -> Divided | None:
        function = self._function.get_concrete_function(data)
        made = self._made.setdefault(id(function), (function, None))
        if made[1] is None:
            made = self._made[id(function)] = (function, Divided.of(function))
        return made[1]
