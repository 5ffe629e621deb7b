"""Snapshots of a model that trains, as a plain model on the chief."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import stored
from tf_convpar.callbacks._file import load
from tf_convpar.callbacks._file import remove
from tf_convpar.callbacks._file import save
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
        model: A model that is built.
        folder: Where each is also written to, if anywhere.
        place: Epoch, and steps of it that have been made.
    """

    def __init__(
        self,
        model: keras.Model,
        folder: pathlib.Path | None = None,
        place: tuple[int, int] = (0, 0),
    ) -> None:
        self._plain = merge(model)
        self.folder = folder
        self._own = _variables(self._plain)
        self._kept = len(state_of(self._plain))
        # Those that the plain model does not have yet.
        self._values: list[tf.Tensor] | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._coming: concurrent.futures.Future[None] | None = None
        self._read: Any = None
        own = [tf.identity(v) for v in self._own]
        self._thread.submit(self._write, own, place)

    @property
    def plain(self) -> keras.Model:
        """A plain model with that state, on the chief.

        Raises:
            tf.errors.OpError: Another worker is lost meanwhile; ask again.
        """
        self._settle()
        return self._plain

    @property
    def under_way(self) -> bool:
        """Whether a snapshot was begun, and nobody has asked how it ended."""
        return self._coming is not None

    def begin(self, model: keras.Model, place: tuple[int, int]) -> None:
        """Reads all variables where they are, and begins to fetch them.

        Args:
            model: As when this was made.
            place: Epoch, and steps of it that have been made.
        """
        self._coming = self._thread.submit(self._fetch, self.read(model), place)

    def read(self, model: keras.Model) -> list[Any]:
        """All variables of a model, where they are, as they are now."""
        if self._read is None:
            self._read = _reader(_variables(model))
        found: list[Any] = self._read()
        return found

    def put(self, values: list[tf.Tensor]) -> None:
        """From here on this state is what is known.

        Args:
            values: What `read` has read, on the chief.
        """
        self._values = values

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

    def is_of(self, model: keras.Model) -> bool:
        """Whether a model has as many variables as when this was made."""
        return len(_variables(model)) == len(self._own)

    def settle(self) -> None:
        """Waits for all that is under way; there will be no other."""
        self._thread.shutdown(wait=True)

    def end(self) -> None:
        """As `settle`, and removes what was written."""
        self.settle()
        if self.folder is not None:
            remove(self.folder)

    def _fetch(self, values: list[Any], place: tuple[int, int]) -> None:
        here = [
            _on(v, value) for v, value in zip(self._own, values, strict=True)
        ]
        # TensorFlow says only where a value is looked at that it never came.
        for value in here:
            np.asarray(value)
        self._write(here, place)
        # From here on this is what is known, whatever fails: all of it.
        self._values = here
        # In a cluster that has lost a worker any call may, also one that goes
        # to the chief alone.
        with contextlib.suppress(tf.errors.OpError):
            self._settle()

    def _settle(self) -> None:
        """Gives the plain model the values that have come."""
        if self._values is None:
            return
        # A variable then has the very memory into which its value has come.
        for variable, value in zip(self._own, self._values, strict=True):
            variable.assign(value)
        self._values = None

    def _write(self, values: list[tf.Tensor], place: tuple[int, int]) -> None:
        if self.folder is None:
            return
        names = [v.path for v in self._own[: self._kept]]
        arrays = [value.numpy() for value in values[: self._kept]]
        try:
            save(self.folder, names, arrays, place)
        except OSError as error:
            # Workers may still be lost; only the chief may not.
            warnings.warn(
                f"Could not write a snapshot to {self.folder}: "
                f"{error.strerror or error}.",
                RuntimeWarning,
                stacklevel=1,
            )


def restore(model: keras.Model, folder: pathlib.Path) -> tuple[int, int] | None:
    """Gives a model the state that was written, if any was.

    Returns:
        Epoch, and steps of it that had been made.

    Raises:
        ValueError: What was written is no snapshot, or one of another model.
    """
    found = load(folder)
    if found is None:
        return None
    names, arrays, place = found
    variables = state_of(model)
    has = [(v.path, tuple(v.shape)) for v in variables]
    if has != list(zip(names, (a.shape for a in arrays), strict=True)):
        raise ValueError(
            f"Expected a snapshot of this model in {folder}, with {len(has)} "
            f"variables from {has[0]} to {has[-1]}. Received one with "
            f"{len(names)}, from {names[0]} to {names[-1]}. Delete it to begin "
            "anew."
        )
    for variable, array in zip(variables, arrays, strict=True):
        if array.dtype.kind == "V":  # bfloat16, as NumPy writes it.
            array = array.view(tf.as_dtype(variable.dtype).as_numpy_dtype)
        variable.assign(array)
    return place


def _reader(variables: list[keras.Variable]) -> Any:
    """Reads all variables in one call; nothing leaves its device."""

    def read() -> list[Any]:
        return [_unshared(variable) for variable in variables]

    return tf.function(read, autograph=False)


def _unshared(variable: keras.Variable) -> Any:
    with tf.device(stored(variable).device):
        return value_of(variable)


def _on(variable: keras.Variable, value: Any) -> tf.Tensor:
    """A value where a variable is; shards are joined there."""
    with tf.device(stored(variable).device):
        return tf.identity(tf.convert_to_tensor(value))


def state_of(model: keras.Model) -> list[keras.Variable]:
    """Weights, random states and slots, once each."""
    every = [
        *model.variables,
        *(model.optimizer.variables if model.optimizer else []),
    ]
    return list({id(variable): variable for variable in every}.values())


def _variables(model: keras.Model) -> list[keras.Variable]:
    """All that training changes, in the same order for a model and its copy."""
    every = [*state_of(model), *model.metrics_variables]
    return list({id(variable): variable for variable in every}.values())
