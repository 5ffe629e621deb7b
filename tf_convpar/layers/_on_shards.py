"""Regularizers and constraints that get shards instead of a variable.

Sums of squares and the like then run where the shards are; what mixes filters
sees the merged kernel.
"""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar.placement import ShardedVariable


def regularizer_on_shards(fn: Any) -> keras.regularizers.Regularizer:
    """A regularizer that does as `fn`."""
    return _Regularizer(fn)


def constraint_on_shards(fn: Any) -> keras.constraints.Constraint:
    """A constraint that does as `fn`."""
    return _Constraint(fn)


class _Regularizer(keras.regularizers.Regularizer):
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, x: Any) -> Any:
        return self.fn(_shards_of(x))


class _Constraint(keras.constraints.Constraint):
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, w: Any) -> Any:
        return self.fn(_shards_of(w))


def _shards_of(variable: Any) -> Any:
    value = variable._value
    if isinstance(value, ShardedVariable):
        return value.sharded_value()
    return variable
