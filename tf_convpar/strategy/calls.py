"""Calls functions when `fit`, `evaluate` or `predict` ends, even by an error.

Keras tells callbacks of the end only where it is reached: not after an error,
of the data or of another callback, nor after Ctrl-C in a notebook, where the
program goes on. It has no hook for either, so the methods are wrapped here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras

from tf_convpar._compat.patches import replace

# The calls that run in each thread, innermost last.
_running = threading.local()


@contextlib.contextmanager
def call() -> Iterator[None]:
    """Context of a call of `fit` or the like."""
    calls = vars(_running).setdefault("calls", [])
    with contextlib.ExitStack() as undone:
        calls.append(undone)
        try:
            yield
        finally:
            calls.pop()


def at_end_of_call(undo: Callable[[], object]) -> None:
    """Calls a function once the innermost call that runs now is over.

    ```python
    def on_train_begin(self, logs=None):
        at_end_of_call(self._close)
    ```

    The last function is called first. In a program's own loop there is no such
    call, and the function is never called.

    Args:
        undo: Function to call; there may be nothing left for it to do.
    """
    calls = vars(_running).get("calls")
    if calls:
        calls[-1].callback(undo)


def _as_a_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        with call():
            return method(self, *args, **kwargs)

    return wrapped


for _name in ("fit", "evaluate", "predict"):
    replace(f"keras:Model.{_name}", by=_as_a_call)
