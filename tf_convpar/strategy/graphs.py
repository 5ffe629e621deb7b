"""Graphs of the steps of models, and how they are freed.

TensorFlow keeps what it has traced for ever, and with it the variables that the
step used, wherever they are: a graph and its operations hold on to one another
out of the garbage collector's sight, and each `tf.custom_gradient` is in a
table of TensorFlow's by a name of its own. A model that is laid out anew again
and again would fill the memory of all machines.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_convpar._compat.tensorflow import dismantle

_of: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = (
    weakref.WeakKeyDictionary()
)


def note(step: Callable[..., Any]) -> None:
    """Remembers the graph that is being traced, if any, for whose step it is.

    Args:
        step: A method of a model, or a function inside of one, as Keras has
            for `predict`.
    """
    if tf.executing_eagerly():
        return
    step = inspect.unwrap(step)
    owner = getattr(step, "__self__", None)
    if owner is None and inspect.isfunction(step):
        owner = inspect.getclosurevars(step).nonlocals.get("self")
    if owner is not None:
        graph = tf.compat.v1.get_default_graph()
        _of.setdefault(owner, weakref.WeakSet()).add(graph)


def free(model: Any) -> None:
    """Frees the graphs of all steps of a model.

    Nobody may call functions any more that were traced for it.
    """
    for graph in list(_of.pop(model, ())):
        dismantle(graph)
