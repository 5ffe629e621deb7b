"""Graphs of the steps of models, and how they are freed.

TensorFlow keeps what it has traced for ever, and with it the variables that the
step used, wherever they are: a graph and its operations hold on to one another
out of the garbage collector's sight, and each `tf.custom_gradient` is in a
table of TensorFlow's by a name of its own. A model that is laid out anew again
and again would fill the memory of all machines, and so would one model after
another. So would what it leaves of each function behind that was on several
tasks (see `ops.release_functions`).
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.tensorflow import dismantle
from tf_convpar._compat.tensorflow import function_names
from tf_convpar.ops import release_functions
from tf_convpar.strategy.devices import here_prefix

_of: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = (
    weakref.WeakKeyDictionary()
)
# The functions of one step that Keras makes for a model.
_STEPS = ("one_step_on_data", "one_step_on_data_distributed")
# Functions that were there, by the runtime's names.
_known: set[str] = set()


def note(step: Callable[..., Any]) -> None:
    """Remembers the graph that is being traced, if any, for whose step it is.

    `free` frees it. A graph of Keras' own functions of a model also goes with
    the model, which they alone refer to: a program's function may outlive it.

    Args:
        step: A method of a model, or a function inside of one, as Keras has
            for `predict`.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    step = inspect.unwrap(step)
    owner = getattr(step, "__self__", None)
    if owner is None and inspect.isfunction(step):
        owner = inspect.getclosurevars(step).nonlocals.get("self")
    if owner is None:
        return
    _of.setdefault(owner, weakref.WeakSet()).add(graph)
    if isinstance(owner, keras.Model) and graph.name in _STEPS:
        gone = weakref.finalize(owner, _dismantled, weakref.WeakSet([graph]))
        gone.atexit = False


def _dismantled(graphs: Iterable[Any]) -> None:
    for graph in list(graphs):
        dismantle(graph)


def look() -> None:
    """Remembers which functions there are, before some of them go."""
    _known.update(function_names())


def free(model: Any, devices: Iterable[str]) -> None:
    """Frees the graphs of all steps of a model.

    Nobody may call functions any more that were traced for it.

    Args:
        model: It was laid out anew.
        devices: Devices of its strategy, on whose tasks parts of them are.
    """
    _dismantled(_of.pop(model, ()))
    release(devices)


def release(devices: Iterable[str]) -> None:
    """Frees what TensorFlow has left of functions that are gone.

    Of those that were there when this was last called, or `look`. Call it when
    what is going to be replaced is still there.
    """
    # Functions and their graphs refer to one another.
    gc.collect()
    now = function_names()
    gone = _known - now
    _known.clear()
    _known.update(now)
    tasks = {d.partition("/device")[0] for d in devices}
    cpus = {f"{task}/device:CPU:0" for task in (here_prefix(), *tasks)}
    release_functions(gone, sorted(cpus))
