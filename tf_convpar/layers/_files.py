"""How models with parallel layers are written: merged, and whole or not at all.

Keras has no hook by which a layer could take part in `Model.export`, `save`
and `save_weights`, so these are wrapped here, once. While they run, the
sharded variables of the model hold ordinary merged ones:

- An export is traced from plain layers. Otherwise device names, shards and the
  custom op would all be in the file.
- Everything is fetched from the devices before a file is touched, so a lost
  worker costs no file; and a file is replaced once the new one is complete.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import ShardedVariable

_merged: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "merged", default=False
)


@contextlib.contextmanager
def merged_storage(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """For a while, each sharded variable is an ordinary one, each layer plain.

    ```python
    with merged_storage(model.variables):
        tf.saved_model.save(model, path)
    ```
    """
    stored = [(v, v._value) for v in _sharded(variables)]
    token = _merged.set(True)
    try:
        for variable, value in stored:
            with tf.device("/device:CPU:0"):
                variable._value = tf.Variable(
                    value.numpy(), trainable=value.trainable, name=value.name
                )
        yield
    finally:
        _merged.reset(token)
        for variable, value in stored:
            variable._value = value


def is_merged() -> bool:
    """Whether layers are traced for a file: as plain Keras layers."""
    return _merged.get()


def _sharded(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    unique = {id(v): v for v in variables}.values()
    return [v for v in unique if isinstance(v._value, ShardedVariable)]


def _plain_export(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        with merged_storage(self.variables):
            return export(self, *args, **kwargs)

    return wrapped


def _whole_or_not_at_all(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def wrapped(
        self: keras.Model,
        filepath: Any,
        overwrite: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        optimizer = getattr(self, "optimizer", None)
        variables = self.variables + (optimizer.variables if optimizer else [])
        if not _sharded(variables):
            return save(self, filepath, overwrite, *args, **kwargs)
        with merged_storage(variables):
            target = _local_file(filepath)
            if target is None or (target.exists() and not overwrite):
                return save(self, filepath, overwrite, *args, **kwargs)
            with tempfile.TemporaryDirectory(
                dir=target.parent, prefix=f".{target.name}-"
            ) as folder:
                fresh = pathlib.Path(folder) / target.name
                result = save(self, str(fresh), True, *args, **kwargs)
                fresh.replace(target)
                return result

    return wrapped


def _local_file(filepath: Any) -> pathlib.Path | None:
    """Where Keras would write one file on this machine; else None."""
    if not isinstance(filepath, str | os.PathLike):
        return None
    path = pathlib.Path(filepath)
    one_file = path.name.endswith((".keras", ".h5", ".hdf5"))
    if "://" in str(filepath) or not one_file or not path.parent.is_dir():
        return None
    return path


keras.Model.export = _plain_export(keras.Model.export)
keras.Model.save = _whole_or_not_at_all(keras.Model.save)
keras.Model.save_weights = _whole_or_not_at_all(keras.Model.save_weights)
