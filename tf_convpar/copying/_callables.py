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

_Of = Callable[[Any], Any]


def callable_like(
    value: Any, of: _Of, remember: Callable[[Any, Any], Any]
) -> Any:
    """The copy of a callable or of a weak reference; None for anything else.

    Args:
        value: What holds state.
        of: Function that returns the copy of what is in it.
        remember: Function that notes the copy of a value, which may hold
            itself, before the rest of it is made.

    Raises:
        ValueError: It is a function that uses what is not there yet.
    """
    if isinstance(value, types.MethodType):
        return types.MethodType(own(value.__func__, of), of(value.__self__))
    if isinstance(value, BUILTIN_METHODS):
        return getattr(of(value.__self__), value.__name__)
    if isinstance(value, weakref.ref):
        return type(value)(of(value()))
    if isinstance(value, types.FunctionType):
        return _function(value, of, remember)
    if isinstance(value, functools.partial):
        keywords = {k: own(v, of) for k, v in value.keywords.items()}
        args = [own(arg, of) for arg in value.args]
        return type(value)(own(value.func, of), *args, **keywords)
    if is_cached(value):
        options = value.cache_parameters()
        return functools.lru_cache(**options)(of(value.__wrapped__))
    if is_tf_function(value):
        owner, name = bound_to(value)
        if owner is not None:
            return getattr(of(owner), name)
        return clone_function(value, of(value.python_function))
    return None


def own(value: Any, of: _Of) -> Any:
    """A copy of what holds state; what holds none is shared."""
    return of(value) if holds_state(value) else value


def _function(
    function: types.FunctionType, of: _Of, remember: Callable[[Any, Any], Any]
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
        new.__defaults__ = tuple(own(x, of) for x in function.__defaults__)
    if function.__kwdefaults__:
        given = function.__kwdefaults__.items()
        new.__kwdefaults__ = {name: own(x, of) for name, x in given}
    for name in functools.WRAPPER_ASSIGNMENTS:
        setattr(new, name, getattr(function, name))
    if len(contents(function)) < len(cells):
        raise ValueError(
            f"Expected all that '{function.__qualname__}' uses to be there "
            "already. Received: a function that uses what is yet to be "
            "assigned. Parallelize the model after that."
        )
    for cell, value in zip(cells, contents(function), strict=True):
        cell.cell_contents = own(value, of)
    vars(new).update({k: own(v, of) for k, v in vars(function).items()})
    return new
