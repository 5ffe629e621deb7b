"""What a copy must have of its own, and what it may share.

Variables, and whatever holds some, belong to one model. A constraint, a
vocabulary, a constant tensor or a function may serve many: they stay the
objects that the user gave.
"""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import Tracker
from tf_convpar._compat.keras import is_of_compile

CONTAINERS = (dict, list, tuple, set, collections.deque)
# Things that change as they are used, such as random generators. A copy goes on
# by itself from the state of the original.
RUNNING: tuple[Any, ...] = (
    *(np.ndarray, np.random.Generator, np.random.RandomState),
    random.Random,
)
_STATE: tuple[Any, ...] = (
    keras.Variable,
    tf.Variable,
    keras.Operation,
    keras.Metric,
    keras.optimizers.Optimizer,
    Tracker,
)
_FOREIGN = ("tensorflow", "numpy", "inspect", "weakref", "logging")


def holds_state(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a value has, anywhere in it, a variable or what may get some."""
    if isinstance(value, _STATE) or is_of_compile(value):
        return True
    seen = set() if seen is None else seen
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(holds_state(part, seen) for part in _parts(value))


def is_object(value: Any) -> bool:
    """Whether a value is of a class in Python, so that `vars` has its state."""
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return False
    if not hasattr(value, "__dict__") or isinstance(value, keras.KerasTensor):
        return False
    return type(value).__module__.split(".")[0] not in _FOREIGN


def is_tf_function(value: Any) -> bool:
    """Whether a value is what `tf.function` returns."""
    return isinstance(value, tf.types.experimental.PolymorphicFunction)


def _parts(value: Any) -> list[Any]:
    """The parts of a value, as far as a copy would follow them."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, CONTAINERS):
        return list(value)
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if is_tf_function(value):
        return [value.python_function]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.FunctionType):
        return contents(value)
    if is_object(value):
        return list(vars(value).values())
    return []


def contents(function: types.FunctionType) -> list[Any]:
    """The values in a function's closure that have been assigned."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue  # Not assigned yet.
    return found
