"""Writes models with parallel layers: merged, and whole or not at all.

Keras has no hook by which a layer could take part in `Model.export`, `save`
and `save_weights`, so these are wrapped here, once. Models without parallel
layers go straight to what is wrapped. `tf.saved_model.save` is wrapped too, in
which `ExportArchive`, TensorFlow's converter and modules of users end. While
parallel models are written, their sharded variables hold ordinary merged ones:

- An export is traced from plain layers. Otherwise device names, shards and the
  custom op would all be in the file.
- Everything is fetched from the devices before a file is touched, so a lost
  worker costs no file. A file is replaced once the new one is complete.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import list_instead
from tf_convpar._compat.keras import store
from tf_convpar._compat.keras import stored
from tf_convpar._compat.patches import replace
from tf_convpar._compat.tensorflow import Trackable
from tf_convpar._compat.tensorflow import of_one_save
from tf_convpar._compat.tensorflow import saving
from tf_convpar.layers._sharded_weights import InShards
from tf_convpar.placement import ShardedVariable
from tf_convpar.placement import standing_for

_merged: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "merged", default=False
)

# What the names of this package's ops begin with.
_OPS = "TfConvpar>"
_TRACED = (
    "Expected functions of parallel layers to be traced while they are saved: "
    "a `tf.function` with an `input_signature`, also for "
    "`archive.add_endpoint`. Received: a function that was traced before, with "
    "ops of this package, without which its file cannot be loaded. Or save "
    "`convpar.merge(model)`."
)

# Functions that recover a model whose worker is lost, by its id.
_recoveries: dict[int, Callable[[], bool]] = {}


@contextlib.contextmanager
def merged_storage(variables: Iterable[keras.Variable]) -> Iterator[None]:
    """A context in which sharded variables are merged, and layers are plain."""
    before = [(v, stored(v)) for v in _sharded(variables)]
    token = _merged.set(True)
    try:
        for variable, value in before:
            with tf.device("/device:CPU:0"):
                merged = tf.Variable(
                    value.numpy(), trainable=value.trainable, name=value.name
                )
            store(variable, merged)
        yield
    finally:
        _merged.reset(token)
        for variable, value in before:
            store(variable, value)


@contextlib.contextmanager
def recovers(model: keras.Model, recover: Callable[[], bool]) -> Iterator[None]:
    """A context in which a model whose worker is lost can be written.

    Args:
        model: A model.
        recover: Is called when a variable cannot be read. Returns whether the
            model, whose variables may be others then, can be read now.
    """
    _recoveries[id(model)] = recover
    try:
        yield
    finally:
        _recoveries.pop(id(model), None)


@contextlib.contextmanager
def _merged_model(
    model: keras.Model, variables: Callable[[Any], list[keras.Variable]]
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(merged_storage(variables(model)))
                break
            except tf.errors.OpError:
                recover = _recoveries.get(id(model))
                if recover is None or not recover():
                    raise
        yield


def is_merged() -> bool:
    """Whether layers run as plain Keras layers now, to be written to a file."""
    return _merged.get()


class Attached:
    """A function in the place of one layer's method, such as `call`."""


def is_parallel(model: keras.Model) -> bool:
    """Whether a model has sharded variables, or layers of this package."""
    layers = [model, *layers_of(model)]
    graphs = [one for one in layers if isinstance(one, keras.Function)]
    for part in (*layers, *(o for graph in graphs for o in graph.operations)):
        call = vars(part).get("call")
        if isinstance(part, InShards) or isinstance(call, Attached):
            return True
    return bool(_sharded(model.variables))


def _sharded(variables: Iterable[keras.Variable]) -> list[keras.Variable]:
    unique = {id(v): v for v in variables}.values()
    return [v for v in unique if isinstance(stored(v), ShardedVariable)]


def _plain_export(export: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(export)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if not is_parallel(self):
            return export(self, *args, **kwargs)
        # Functions that the model calls are traced for this file alone: what
        # they were traced for before has shards, and this is gone after it.
        with (
            _merged_model(self, lambda model: model.variables),
            saving(of_one_save()),
        ):
            return export(self, *args, **kwargs)

    return wrapped


class _NotHeld:
    """Stands in for sharded variables that a saved object does not hold."""

    def shape(self, variable: ShardedVariable) -> tf.TensorShape:
        return variable.merged_shape

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        raise ValueError(
            "Expected what is saved to hold the models that it uses: by "
            "`archive.track(model)`, or as an attribute. Received: a function "
            f"that uses '{variable.name}', in shards, of a model that is not "
            "held."
        )

    def write(self, variable: ShardedVariable, method: str, value: Any) -> None:
        self.read(variable)


def _plain_saved_model(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def wrapped(
        obj: Any, export_dir: Any, signatures: Any = None, options: Any = None
    ) -> Any:
        held: list[Any] = []
        if isinstance(obj, Trackable):
            held = tf.train.TrackableView(obj).descendants()
        sharded = _sharded(v for one in held for v in _variables_of(one))
        if _are_traced([*held, *tf.nest.flatten(signatures)]):
            if sharded:
                raise ValueError(_TRACED)
            # On one device such a file is of use where this package is.
            warnings.warn(_TRACED, RuntimeWarning, stacklevel=2)
        if sharded or is_merged():
            # In a save before, or after, merged variables are others.
            options = of_one_save(options)
        shards = [s for v in sharded for s in stored(v).shards]
        with merged_storage(sharded), standing_for(_NotHeld()), saving(None):
            list_instead(obj, shards, [stored(v) for v in sharded])
            return save(obj, export_dir, signatures, options)

    return wrapped


def _variables_of(one: Any) -> list[keras.Variable]:
    """The variables of one of the objects that TensorFlow follows."""
    if isinstance(one, keras.Variable):
        return [one]
    if isinstance(one, keras.Model):
        return _saved(one)
    # Keras' own lists of layers are not followed by TensorFlow.
    own = isinstance(one, keras.layers.Layer | keras.optimizers.Optimizer)
    return one.variables if own else []


def _are_traced(functions: Iterable[Any]) -> bool:
    """Whether one was traced with ops of this package, and cannot be plain."""
    for function in functions:
        if not isinstance(function, tf.types.experimental.ConcreteFunction):
            continue
        graph = function.graph.as_graph_def()
        nodes = [graph.node, *(f.node_def for f in graph.library.function)]
        if any(n.op.startswith(_OPS) for part in nodes for n in part):
            return True
    return False


def _saved_atomically(save: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(save)

    @functools.wraps(save)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not _sharded(_saved(model)):
            return save(model, *args, **kwargs)
        bound = signature.bind(model, *args, **kwargs)
        bound.apply_defaults()
        asks_first = not bound.arguments["overwrite"]
        with _merged_model(model, _saved):
            target = _local_file(**bound.arguments)
            if target is None or (target.exists() and asks_first):
                return save(*bound.args, **bound.kwargs)
            with tempfile.TemporaryDirectory(
                dir=target.parent, prefix=f".{target.name}-"
            ) as folder:
                fresh = pathlib.Path(folder) / target.name
                bound.arguments.update(filepath=str(fresh), overwrite=True)
                result = save(*bound.args, **bound.kwargs)
                if target.exists():
                    shutil.copymode(target, fresh)
                fresh.replace(target)
                return result

    return wrapped


def _saved(model: Any) -> list[keras.Variable]:
    """The variables that Keras would write; none for other objects."""
    if not isinstance(model, keras.Model):
        return []
    optimizer = getattr(model, "optimizer", None)
    return [*model.variables, *(optimizer.variables if optimizer else ())]


def _local_file(
    filepath: Any, max_shard_size: float | None = None, **other_arguments: Any
) -> pathlib.Path | None:
    """The path, if Keras would write one file of this machine; else None."""
    del other_arguments
    if max_shard_size is not None or not isinstance(
        filepath, str | os.PathLike
    ):
        return None
    name = str(filepath)
    if "://" in name or not name.endswith((".keras", ".h5", ".hdf5")):
        return None
    # What a link leads to is replaced, and the link stays.
    path = pathlib.Path(os.path.realpath(filepath))
    return path if path.parent.is_dir() else None


replace("keras:Model.export", by=_plain_export)
replace("tensorflow.python.saved_model.save:save", by=_plain_saved_model)
# `Model.save` and `tf.keras.models.save_model` are other names for the first.
replace("keras.saving:save_model", by=_saved_atomically)
replace("keras.saving:save_weights", by=_saved_atomically)
