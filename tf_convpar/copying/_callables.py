"""Copies of what can be called: of methods, functions and what wraps them.

A layer may hold its own method, as it is or in something that TensorFlow or
Python has made of it: its copy holds the copy's.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

from tf_convpar._compat.tensorflow import bound_to
from tf_convpar._compat.tensorflow import clone_function
from tf_convpar.copying._state import BUILTIN_METHODS
from tf_convpar.copying._state import contents
from tf_convpar.copying._state import holds_state
from tf_convpar.copying._state import is_cached
from tf_convpar.copying._state import is_tf_function

_Copy = Callable[[Any], Any]


def callable_like(
    value: Any, copy: _Copy, remember: Callable[[Any, Any], Any]
) -> Any:
    """The copy of a callable or of a weak reference; None for anything else.

    Args:
        value: What holds state.
        copy: Function that returns the copy of a value in it.
        remember: Function that notes the copy of a value, which may hold
            itself, before the rest of it is made.

    Raises:
        ValueError: It is a function that uses what is not there yet.
    """
    if isinstance(value, types.MethodType):
        return types.MethodType(
            copy_of(value.__func__, copy), copy(value.__self__)
        )
    if isinstance(value, BUILTIN_METHODS):
        return getattr(copy(value.__self__), value.__name__)
    if isinstance(value, weakref.ref):
        return type(value)(copy(value()))
    if isinstance(value, types.FunctionType):
        return _function(value, copy, remember)
    if isinstance(value, functools.partial):
        keywords = {k: copy_of(v, copy) for k, v in value.keywords.items()}
        args = [copy_of(arg, copy) for arg in value.args]
        return type(value)(copy_of(value.func, copy), *args, **keywords)
    if is_cached(value):
        options = value.cache_parameters()
        return functools.lru_cache(**options)(copy(value.__wrapped__))
    if is_tf_function(value):
        owner, name = bound_to(value)
        if owner is not None:
            return getattr(copy(owner), name)
        return clone_function(value, copy(value.python_function))
    return None


def copy_of(value: Any, copy: _Copy) -> Any:
    """The copy of a value that holds state; else the value itself."""
    return copy(value) if holds_state(value) else value


def _function(
    function: types.FunctionType,
    copy: _Copy,
    remember: Callable[[Any, Any], Any],
) -> Any:
    """A function of the same code, with copies of what it has."""
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    new = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        closure=cells,
    )
    remember(function, new)
    if function.__defaults__:
        new.__defaults__ = tuple(
            copy_of(x, copy) for x in function.__defaults__
        )
    if function.__kwdefaults__:
        defaults = function.__kwdefaults__.items()
        new.__kwdefaults__ = {name: copy_of(x, copy) for name, x in defaults}
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(new, name, getattr(function, name))
    if len(contents(function)) < len(cells):
        raise ValueError(
            f"Expected all that '{function.__qualname__}' uses to be there "
            "already. Received: a function that uses what is yet to be "
            "assigned. Parallelize the model after that."
        )
    for cell, value in zip(cells, contents(function), strict=True):
        cell.cell_contents = copy_of(value, copy)
    vars(new).update({k: copy_of(v, copy) for k, v in vars(function).items()})
    return new
