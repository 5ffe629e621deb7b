"""Adds to TensorFlow's own errors what a person can do about them.

They may be raised anywhere in a program, so the text is added where TensorFlow
makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_convpar._compat.patches import replace

MIXED = (
    "Expected one strategy for a model, from its making to its training. Make "
    "one ConvParallelStrategy at the start of the program and use that same "
    "object everywhere: in `with strategy.scope():`, make the model, compile "
    "it and call `parallelize`. `fit` needs no scope. In a notebook, do not "
    "run the cell that makes the strategy again; or run all cells that make "
    "the model again after it."
)
MADE_BEFORE = (
    "Expected the ConvParallelStrategy to be made before any variable, since "
    "joining a cluster ends the life of those that exist. Received one that "
    "was made earlier: weights of a model, or random state, which "
    "keras.layers.Dropout, RandomFlip and their like, "
    "keras.random.SeedGenerator and tf.random.Generator have. Move "
    "`strategy = convpar.ConvParallelStrategy()` to the top of the program, "
    "above these. In a notebook, restart the kernel and make it first."
)
LOST = (
    "A task of this cluster does not answer: its process or machine has "
    "ended, or the network between. What it held of the model is lost, and "
    "this program cannot use it again as it is. Start the workers that have "
    "ended, and the program. In a notebook, restart the kernel and run its "
    "cells; with `convpar.local_workers`, it is enough to run that cell and "
    "those below it again. `fit(callbacks=[convpar.callbacks.Elastic()])` "
    "goes on without lost workers, and takes them in when they return."
)


def explain(code: int, message: str) -> str | None:
    """What to do about an error of an operation; None if nothing is known."""
    if "Client for target" in message and "not found" in message:
        return MADE_BEFORE
    return LOST if code == tf.errors.UNAVAILABLE else None


@functools.cache
def of_clusters() -> None:
    """Adds hints to the errors that only a program in a cluster meets."""
    # Some are raised from C++, some from Python: all are made here.
    replace("tensorflow:errors.OpError.__init__", by=_explained)


def _explained(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def wrapped(
        self: tf.errors.OpError,
        node_def: Any,
        op: Any,
        message: Any,
        error_code: int,
        *args: Any,
    ) -> None:
        more = explain(error_code, str(message))
        if more and more not in message:
            message = f"{message}\n\n{more}"
        make(self, node_def, op, message, error_code, *args)

    return wrapped


def of_strategies(kind: type) -> None:
    """Adds a cure to the error about two strategies, if one is a `kind`."""
    replace(
        "tensorflow.python.distribute.distribute_lib:_wrong_strategy_scope",
        by=functools.partial(_told_of_mixing, kind=kind),
    )


def _told_of_mixing(
    wrong: Callable[[Any, Any], None], kind: type
) -> Callable[[Any, Any], None]:
    @functools.wraps(wrong)
    def wrapped(strategy: Any, context: Any) -> None:
        try:
            wrong(strategy, context)
        except RuntimeError as error:
            mixed = (strategy, context.strategy)
            if any(isinstance(one, kind) for one in mixed):
                raise RuntimeError(f"{error}\n\n{MIXED}") from None
            raise

    return wrapped
