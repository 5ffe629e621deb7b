"""Momentum, where a method adds it to the model's SGD."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar.replicas._method import Method


class WithMomentum(Method):
    """What steps has momentum: equations (3) to (5) of `_equations`.

    Args:
        model: A Keras model, compiled with `SGD`.
        *args: Of the method without momentum.
        momentum: `mu`.
        **kwargs: Of the method without momentum.
    """

    def __init__(
        self,
        model: keras.Model,
        *args: Any,
        momentum: float = 0.9,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *args, **kwargs)
        self.momentum = momentum

    def _optimizer(self) -> Any:
        """SGD with momentum, like the model's.

        Raises:
            ValueError: The model's is another optimizer.
        """
        optimizer = self.model.optimizer
        if type(optimizer) is not keras.optimizers.SGD:
            raise ValueError(
                "Expected a model compiled with SGD, to which this method adds "
                f"momentum. Received: {type(optimizer).__name__}."
            )
        config = {**optimizer.get_config(), "momentum": self.momentum}
        return keras.optimizers.SGD.from_config(config)
