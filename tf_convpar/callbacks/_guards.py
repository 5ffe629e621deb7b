"""Replaces the functions of a model that Keras' loops call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras

Guarded = Callable[[str, Iterable[Any]], Any]


class Guards:
    """Replaces the function that a model has for each mode.

    ```python
    guards = Guards(model, guarded)
    guards.put("train")
    model.train_function(iterator)  # is guarded("train", iterator)
    guards.inner["train"](iterator)  # is what the model had
    guards.remove()
    ```

    Args:
        model: A model, which has its functions.
        guarded: Function that is called instead, with mode and iterator.

    Attributes:
        inner: The model's own functions, by mode.
    """

    def __init__(self, model: keras.Model, guarded: Guarded) -> None:
        self.inner: dict[str, Callable[[Iterable[Any]], Any]] = {}
        self._model, self._guarded = model, guarded

    def put(self, mode: str) -> None:
        """Replaces the function of a mode, unless it is replaced already."""
        if not self.stand(mode):
            name = f"{mode}_function"
            self.inner[mode] = getattr(self._model, name)
            guarded = functools.partial(self._guarded, mode)
            setattr(self._model, name, guarded)

    def stand(self, mode: str) -> bool:
        """Whether the function of a mode is replaced."""
        function = getattr(self._model, f"{mode}_function")
        return getattr(function, "func", None) == self._guarded

    def forget(self) -> None:
        """Forgets functions that the model has made anew since."""
        self.inner = {m: f for m, f in self.inner.items() if self.stand(m)}

    def make(self) -> None:
        """Lets the model, which was laid out anew, make its functions."""
        for mode in self.inner:
            getattr(self._model, f"make_{mode}_function")()
            self.put(mode)

    def remove(self) -> None:
        """Gives the model its own functions back."""
        self.forget()
        for mode, function in self.inner.items():
            setattr(self._model, f"{mode}_function", function)
        self.inner = {}
