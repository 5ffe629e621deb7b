"""Graphs of the steps of models, and how they are freed.

A model that is laid out anew keeps what was traced for it, and with it the
variables that its step used, wherever they are. One layout after another would
fill the memory of all machines. So would what TensorFlow leaves of functions
that were on several tasks (see `ops.release_functions`), and the gradients in
its table (see `free_with_their_functions`).
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_convpar._compat.gradients import free_with_their_functions
from tf_convpar._compat.tensorflow import dismantle
from tf_convpar._compat.tensorflow import function_names
from tf_convpar.ops import release_functions
from tf_convpar.strategy.devices import here_prefix

_graphs_of: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = (
    weakref.WeakKeyDictionary()
)
# Names of functions that the runtime had at the last look.
_known_names: set[str] = set()


def note(step: Callable[..., Any]) -> None:
    """Remembers a graph that is being traced as one of a model's step.

    `free` frees it.

    Args:
        step: A method of the model, or a function within one, as Keras has for
            `predict`.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    step = inspect.unwrap(step)
    owner = getattr(step, "__self__", None)
    if owner is None and inspect.isfunction(step):
        names = step.__code__.co_freevars
        cells = dict(zip(names, step.__closure__ or (), strict=True))
        with contextlib.suppress(KeyError, ValueError):  # Not set yet.
            owner = cells["self"].cell_contents
    if owner is None:
        return
    # A trainer of the user's may have no hash, as a dataclass; its graphs are
    # never freed.
    with contextlib.suppress(TypeError):
        _graphs_of.setdefault(owner, weakref.WeakSet()).add(graph)


def look() -> None:
    """Remembers which functions exist, before some are freed."""
    _known_names.update(function_names())


def free(model: Any, devices: Iterable[str]) -> None:
    """Frees the graphs of all steps of a model.

    Nobody may call functions any more that were traced for it.

    Args:
        model: Model that was laid out anew.
        devices: Devices of its strategy, whose tasks have parts of the graphs.
    """
    for graph in list(_graphs_of.pop(model, ())):
        dismantle(graph)
    release(devices)


def release(devices: Iterable[str]) -> None:
    """Frees what TensorFlow has left of functions that no longer exist.

    These existed at the last call of this function, or of `look`. Call `look`
    while the functions that will be replaced still exist.
    """
    # Functions and their graphs refer to one another.
    gc.collect()
    now = function_names()
    gone = _known_names - now
    _known_names.clear()
    _known_names.update(now)
    tasks = {d.partition("/device")[0] for d in devices}
    cpus = {f"{task}/device:CPU:0" for task in (here_prefix(), *tasks)}
    release_functions(gone, sorted(cpus))


free_with_their_functions()
