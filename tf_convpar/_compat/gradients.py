"""Frees gradients of `tf.custom_gradient` together with their function.

TensorFlow enters the gradient of each call in a graph into a table, by a name
of its own, for ever. With it stay the graph and its variables, though nobody
can ask for that gradient any more when the function is gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_convpar._compat.patches import replace
from tf_convpar._compat.tensorflow import gradient_registry

_NAMES = "_convpar_gradients"
_BEGIN = "CustomGradient"


def free_with_their_functions() -> None:
    """Lets TensorFlow free them, for functions that are traced from now on."""
    replace("tensorflow:RegisterGradient.__call__", by=_noted)
    # A function and what computes its gradients share an object, whose end
    # calls this by its name in that module.
    replace(
        "tensorflow.python.framework.func_graph:dismantle_func_graph",
        by=_and_gradients,
    )
    replace(
        "tensorflow.python.eager.polymorphic_function.concrete_function:"
        "ConcreteFunctionGarbageCollector.release",
        by=lambda release: _release,
    )


def _noted(register: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Notes in a graph the names of gradients of calls in it."""

    @functools.wraps(register)
    def wrapped(self: Any, gradient: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if self._op_type.startswith(_BEGIN) and graph.building_function:
            names = getattr(graph, _NAMES, None)
            if names is None:
                names = []
                setattr(graph, _NAMES, names)
            names.append(self._op_type)
        return register(self, gradient)

    return wrapped


class _Left:
    """A graph that may outlive its function. Its gradients do not."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph


def _release(function: Any) -> None:
    """Leaves the graph of a function to Python, as TensorFlow does."""
    if not isinstance(function._func_graph, _Left):
        function._func_graph = _Left(function._func_graph)


def _and_gradients(dismantle: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(dismantle)
    def wrapped(graph: Any) -> None:
        if isinstance(graph, _Left):
            graph = graph.graph
        else:
            dismantle(graph)
        for name in getattr(graph, _NAMES, ()):
            gradient_registry._registry.pop(name, None)

    return wrapped
