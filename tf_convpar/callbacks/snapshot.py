"""Snapshots of a model that trains, as a plain model on the chief."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import stored
from tf_convpar.callbacks._background import Background
from tf_convpar.callbacks._writer import Writer
from tf_convpar.callbacks.snapshot_file import Written
from tf_convpar.placement import value_of
from tf_convpar.sharding import merge


class Snapshot(Background):
    """The last complete state of a model.

    ```python
    snapshot = Snapshot(model)
    snapshot.begin(model)  # holds nothing up
    ...
    if snapshot.arrived():
        snapshot.plain  # has the state of when it was begun
    ```

    Values stay on their devices, as they were read, while training changes the
    variables; a thread fetches them.

    Args:
        model: A model that is built.
        writer: Writes each snapshot to a folder as well; None for none.
        place: Epoch, and steps of it that have been made.
    """

    def __init__(
        self,
        model: keras.Model,
        writer: Writer | None = None,
        place: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        self._plain = merge(model)
        self._writer = writer
        self._plain_variables = _variables(self._plain)
        self._state_count = len(state_of(self._plain))
        # Values that the plain model does not have yet.
        self._values: list[tf.Tensor] | None = None
        self._read: Any = None
        if writer is not None:
            self._write([np.asarray(v) for v in self._plain_variables], place)

    @property
    def plain(self) -> keras.Model:
        """A plain model with that state, on the chief.

        Raises:
            tf.errors.OpError: Another worker is lost meanwhile; ask again.
        """
        self._settle()
        return self._plain

    def begin(self, model: keras.Model, place: tuple[int, int]) -> None:
        """Reads all variables where they are, and begins to fetch them.

        Args:
            model: As when this was made.
            place: Epoch, and steps of it that have been made.
        """
        self.start(self._fetch, self.read(model), place)

    def read(self, model: keras.Model) -> list[Any]:
        """All variables of a model, where they are, as they are now."""
        if self._read is None:
            self._read = _reader(_variables(model))
        values: list[Any] = self._read()
        return values

    def put(self, values: list[tf.Tensor]) -> None:
        """Takes other values as the last complete state.

        Args:
            values: What `read` has read, on the chief.
        """
        self._values = values

    def forget(self) -> None:
        """Forgets the model's variables, which others have replaced."""
        self._read = None

    def is_of(self, model: keras.Model) -> bool:
        """Whether a model has as many variables as when this was made."""
        return len(_variables(model)) == len(self._plain_variables)

    def _fetch(self, values: list[Any], place: tuple[int, int]) -> None:
        here = [
            _beside(v, value)
            for v, value in zip(self._plain_variables, values, strict=True)
        ]
        # A value that never came fails only when it is read.
        arrays = [np.asarray(value) for value in here]
        # All values have come: this is the last complete state.
        self._values = here
        self._write(arrays, place)
        # In a cluster that has lost a worker any call may fail, even one to the
        # chief alone.
        with contextlib.suppress(tf.errors.OpError):
            self._settle()

    def _settle(self) -> None:
        """Gives the plain model the values that have come."""
        if self._values is None:
            return
        # The variable takes over the memory of the value.
        for variable, value in zip(
            self._plain_variables, self._values, strict=True
        ):
            variable.assign(value)
        self._values = None

    def _write(self, arrays: list[np.ndarray], place: tuple[int, int]) -> None:
        if self._writer is not None:
            names = [v.path for v in self._plain_variables[: self._state_count]]
            self._writer.write(names, arrays[: self._state_count], place)


def restore(model: keras.Model, written: Written, folder: pathlib.Path) -> None:
    """Gives a model the state that was written to a folder.

    Raises:
        ValueError: It is the state of another model. `model` then stays as it
            was.
    """
    names, arrays, _ = written
    variables = state_of(model)
    arrays = [
        _as_written(array, np.dtype(tf.as_dtype(v.dtype).as_numpy_dtype))
        for array, v in zip(arrays, variables, strict=False)
    ] + arrays[len(variables) :]
    has = [(v.path, tuple(v.shape), str(v.dtype)) for v in variables]
    read = [
        (name, array.shape, str(array.dtype))
        for name, array in zip(names, arrays, strict=True)
    ]
    if has != read:
        either = itertools.zip_longest(has, read)
        expected, received = next(pair for pair in either if pair[0] != pair[1])
        raise ValueError(
            f"Expected a snapshot of this model in {folder}, with {len(has)} "
            f"variables. Received one with {len(read)}; the first to differ is "
            f"{_described(received)} in the place of {_described(expected)}. "
            "Delete it to begin anew."
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def lacks_variables(model: keras.Model, written: Written) -> bool:
    """Whether a model has but some of the variables that were written.

    Its first step may make the others.
    """
    has = collections.Counter((v.path, tuple(v.shape)) for v in state_of(model))
    return has < collections.Counter(
        (name, array.shape)
        for name, array in zip(written.names, written.arrays, strict=True)
    )


def _as_written(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """An array of bfloat16, say, which NumPy reads as 2 bytes each."""
    same = array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if same else array


def _described(variable: tuple[str, Sequence[int], str] | None) -> str:
    if variable is None:
        return "none"
    path, shape, dtype = variable
    return f"'{path}' of {dtype} and shape {tuple(shape)}"


def _reader(variables: list[keras.Variable]) -> Any:
    """Reads all variables in one call; nothing leaves its device."""

    def read() -> list[Any]:
        return [_unshared(variable) for variable in variables]

    return tf.function(read, autograph=False)


def _unshared(variable: keras.Variable) -> Any:
    with tf.device(stored(variable).device):
        return value_of(variable)


def _beside(variable: keras.Variable, value: Any) -> tf.Tensor:
    """A value where a variable is; shards are joined there."""
    with tf.device(stored(variable).device):
        return tf.identity(tf.convert_to_tensor(value))


def state_of(model: keras.Model) -> list[keras.Variable]:
    """Weights, random states and slots, once each."""
    slots = [v for o in optimizers_of(model) for v in o.variables]
    every = [*model.variables, *slots]
    return list({id(variable): variable for variable in every}.values())


def optimizers_of(model: keras.Model) -> list[Any]:
    """The optimizer of `compile`, and others that the model holds.

    Keras does not know of these, such as the two of an adversarial network.
    """
    # A model that was never compiled lacks the attribute.
    values = [getattr(model, "optimizer", None), *vars(model).values()]
    optimizers = [
        v for v in values if isinstance(v, keras.optimizers.Optimizer)
    ]
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())


def _variables(model: keras.Model) -> list[keras.Variable]:
    """All that training changes, in the same order for a model and its copy."""
    every = [*state_of(model), *model.metrics_variables]
    return list({id(variable): variable for variable in every}.values())
