"""Snapshots of a model that trains, as a plain model on the chief."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import stored
from tf_convpar.placement import value_of
from tf_convpar.sharding import merge


class Snapshot:
    """The last state of a model that is known whole.

    ```python
    snapshot = Snapshot(model)
    snapshot.begin(model)  # holds nothing up
    ...
    if snapshot.arrived():
        snapshot.plain  # has the state of when it was begun
    ```

    What is read stays on its device, as it was, while training changes the
    variables; a thread fetches it.

    Args:
        model: A model whose optimizer and metrics have all their variables.

    Attributes:
        plain: A plain model with that state, on the chief.
    """

    def __init__(self, model: keras.Model) -> None:
        self.plain = merge(model)
        self._own = _variables(self.plain)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: concurrent.futures.Future[None] | None = None
        self._read: Any = None

    @property
    def under_way(self) -> bool:
        """Whether a snapshot was begun, and nobody has asked how it ended."""
        return self._coming is not None

    def begin(self, model: keras.Model) -> None:
        """Reads all variables where they are, and begins to fetch them."""
        if self._read is None:
            self._read = _reader(_variables(model))
        self._coming = self._thread.submit(self._fetch, self._read())

    def arrived(self, wait: bool = False) -> bool:
        """Whether `plain` has the state of the last beginning; asked once.

        Args:
            wait: Whether to wait for it. Without that, one that is still on
                its way may be asked for again.
        """
        if self._coming is None or not (wait or self._coming.done()):
            return False
        coming, self._coming = self._coming, None
        return coming.exception() is None

    def forget(self) -> None:
        """The model has other variables from now on."""
        self._read = None

    def _fetch(self, values: list[Any]) -> None:
        # All, before any takes the place of what was known.
        arrays = [tf.convert_to_tensor(value).numpy() for value in values]
        for variable, array in zip(self._own, arrays, strict=True):
            variable.assign(array)


def _reader(variables: list[keras.Variable]) -> Any:
    """Reads all variables in one call; nothing leaves its device."""

    def read() -> list[Any]:
        return [_unshared(variable) for variable in variables]

    return tf.function(read, autograph=False)


def _unshared(variable: keras.Variable) -> Any:
    with tf.device(stored(variable).device):
        return value_of(variable)


def _variables(model: keras.Model) -> list[keras.Variable]:
    """All that training changes, in the same order for a model and its copy."""
    every = [
        *model.variables,
        *(model.optimizer.variables if model.optimizer else []),
        *model.metrics_variables,
    ]
    return list({id(variable): variable for variable in every}.values())
