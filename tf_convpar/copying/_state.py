"""Tells values that a copy must have of its own from those that it may share.

Variables, and whatever holds some, belong to one model. A constraint, a
vocabulary, a constant tensor or a function may serve many: they stay the
objects that the user gave.
"""

from __future__ import annotations

import collections
import copy
import functools
import random
import types
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import Tracker
from tf_convpar._compat.keras import has_history
from tf_convpar._compat.keras import is_of_compile
from tf_convpar._compat.tensorflow import Bind
from tf_convpar._compat.tensorflow import TFDecorator
from tf_convpar._compat.tensorflow import TrackableReference
from tf_convpar._compat.tensorflow import bound_to

CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
# Methods of objects in C, such as `list.append`.
BUILTIN_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)
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
    tf.random.Generator,
)
_FOREIGN = ("tensorflow", "numpy", "inspect", "weakref", "logging")
_CACHED: Any = type(functools.cache(len))


def holds_state(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a value holds a variable, or an object that may get one."""
    if isinstance(value, _STATE) or is_of_compile(value) or is_symbolic(value):
        return True
    seen = set() if seen is None else seen
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(holds_state(part, seen) for part in _parts(value))


def holds_symbolic(value: Any, seen: set[int] | None = None) -> bool:
    """Whether a value has a tensor of a graph, outside of layers."""
    if is_symbolic(value):
        return True
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, _STATE):
        return False
    seen.add(id(value))
    return any(holds_symbolic(part, seen) for part in _parts(value))


def is_symbolic(value: Any) -> bool:
    """Whether a value is a tensor of a graph of layers."""
    return isinstance(value, keras.KerasTensor) and has_history(value)


def is_object(value: Any) -> bool:
    """Whether a value is of a class in Python, whose attributes are its state.

    See `attributes`.
    """
    if isinstance(value, Bind | TFDecorator | TrackableReference):
        return True  # TensorFlow's, around something of the user's.
    if isinstance(value, type | types.ModuleType | types.FunctionType):
        return False
    if isinstance(value, keras.KerasTensor):
        return False
    if not hasattr(value, "__dict__") and not any(_slots(value)):
        return False
    return type(value).__module__.split(".")[0] not in _FOREIGN


def is_tf_function(value: Any) -> bool:
    """Whether a value is what `tf.function` returns."""
    return isinstance(value, tf.types.experimental.PolymorphicFunction)


def is_cached(value: Any) -> bool:
    """Whether a value is what `functools.lru_cache` returns."""
    return isinstance(value, _CACHED)


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots among them."""
    values = dict(getattr(value, "__dict__", {}))
    for name, slot in _slots(value):
        try:
            values[name] = slot.__get__(value)
        except AttributeError:
            continue  # Nothing is in it.
    return values


def set_attribute(value: Any, name: str, part: Any) -> None:
    """Sets an attribute of an object, past its class's `__setattr__`."""
    slot = dict(_slots(value)).get(name)
    if slot is None:
        vars(value)[name] = part
    else:
        slot.__set__(value, part)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for name, member in vars(kind).items():
                if isinstance(member, types.MemberDescriptorType):
                    yield name, member


def _parts(value: Any) -> list[Any]:
    """The parts of a value, as far as a copy would follow them."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, CONTAINERS):
        return list(value)
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, BUILTIN_METHODS):
        return [value.__self__]
    if isinstance(value, weakref.ref):
        return [value()]
    if is_tf_function(value):
        owner, _ = bound_to(value)
        return [value.python_function if owner is None else owner]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if is_cached(value):
        return [value.__wrapped__]
    if isinstance(value, types.FunctionType):
        return function_parts(value)
    if is_object(value):
        return list(attributes(value).values())
    return []


def function_parts(function: types.FunctionType) -> list[Any]:
    """The values in a function's closure, defaults and attributes."""
    return [
        *contents(function),
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *vars(function).values(),
    ]


def contents(function: types.FunctionType) -> list[Any]:
    """The values in a function's closure that have been assigned."""
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            continue  # Not assigned yet.
    return values


def empty_like(value: Any) -> Any:
    """An object of the same class, without attributes."""
    try:
        return object.__new__(type(value))
    except TypeError:
        return copy.copy(value)  # It derives from a class in C.
