"""Parallel layers in Keras' exports: always plain, without devices.

Keras traces a model for export as it stands: device names, shards and the
custom op would all be in the file. It has no hook by which a layer could say
otherwise, so `keras.Model.export` is wrapped here, once: while it runs, the
sharded variables of the model hold ordinary merged ones, and layers without
shards are the Keras layers they derive from.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import ShardedVariable


@contextlib.contextmanager
def merged_storage(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """For a while, each sharded variable is an ordinary one.

    ```python
    with merged_storage(model.variables):
        tf.saved_model.save(model, path)
    ```
    """
    sharded = {
        id(v): v for v in variables if isinstance(v._value, ShardedVariable)
    }
    stored = [(v, v._value) for v in sharded.values()]
    try:
        for variable, value in stored:
            with tf.device("/device:CPU:0"):
                variable._value = tf.Variable(
                    value.numpy(), trainable=value.trainable, name=value.name
                )
        yield
    finally:
        for variable, value in stored:
            variable._value = value


def _wrap(export: Any) -> Any:
    @functools.wraps(export)
    def plain_export(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        with merged_storage(self.variables):
            return export(self, *args, **kwargs)

    return plain_export


keras.Model.export = _wrap(keras.Model.export)
