"""Keras variables in shards, new ones and ones that exist already."""

from __future__ import annotations

import functools
import types
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import store
from tf_convpar._compat.keras import stored
from tf_convpar._compat.keras import stored_dtype
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._sharded_variable import ShardedVariable


class PlacedVariable(keras.Variable):
    """A `keras.Variable` that keeps its layout however the model is built.

    ```python
    kernel = PlacedVariable(
        "glorot_uniform", shape=(5, 5, 50, 500), layout=layout, name="kernel"
    )
    ```

    It carries its layout, so no scope needs to be open when Keras creates it.
    That may be in a layer's `build`, later (a model built from symbolic inputs
    initialises its variables afterwards), or while a graph is being traced.
    """

    def __init__(self, *args: Any, layout: Layout, **kwargs: Any) -> None:
        self.layout = layout  # Set before Keras makes the value.
        super().__init__(*args, **kwargs)

    def _initialize(self, value: Any) -> None:
        self._value = ShardedVariable(
            value,
            self.layout,
            dtype=self._dtype,
            trainable=self.trainable,
            name=self.name,
        )

    @property
    def shards(self) -> tuple[tf.Variable, ...]:
        """The variables of the shards, in the order of the layout."""
        return self._value.shards

    # Keras calls both with the variable; here they get its shards. Then sums of
    # squares and the like run where the shards are, and what mixes filters
    # sees the merged kernel.

    @property
    def regularizer(self) -> Any:
        """The given regularizer, which computes where the shards are."""
        return given_shards(self._regularizer)

    @regularizer.setter
    def regularizer(self, value: Any) -> None:
        keras.Variable.regularizer.fset(self, value)

    @property
    def constraint(self) -> Any:
        """The given constraint, which projects where the shards are."""
        return given_shards(self._constraint)

    @constraint.setter
    def constraint(self, value: Any) -> None:
        keras.Variable.constraint.fset(self, value)


def given_shards(fn: Any) -> Any:
    """A regularizer or constraint that gets shards, not a variable.

    A function is wrapped, and so are methods and partial functions. For an
    object, a copy with the same state is made, of a subclass that has the same
    name.
    """
    if fn is None:
        return None

    def call(x: Any) -> Any:
        # Within a `StatelessScope` Keras gives the scope's tensor.
        value = stored(x) if isinstance(x, keras.Variable) else x
        sharded = isinstance(value, ShardedVariable)
        return fn(value.sharded_value() if sharded else x)

    functions = types.FunctionType | types.MethodType | functools.partial
    if isinstance(fn, functions):
        return functools.wraps(fn)(call)
    kind = type(fn)
    methods = {
        "__call__": lambda self, x: call(x),
        "__module__": kind.__module__,
    }
    copy: Any = object.__new__(type(kind.__name__, (kind,), methods))
    vars(copy).update(vars(fn))
    return copy


def value_of(variable: keras.Variable) -> Any:
    """A variable's value as it is stored: a sharded tensor, or a tensor."""
    value = stored(variable)
    if isinstance(value, ShardedVariable):
        return value.sharded_value()
    return tf.convert_to_tensor(value)


def place(variable: keras.Variable, layout: Layout) -> None:
    """Cuts a variable that exists, and puts each shard on its device.

    ```python
    place(layer.gamma, layout)
    ```

    The variable stays the same object, in all lists that hold it.
    """
    before = stored(variable)
    variable.__class__ = PlacedVariable
    variable.layout = layout
    value = ShardedVariable(
        before.numpy(),
        layout,
        dtype=stored_dtype(variable),
        # TensorFlow's flag, not Keras': Keras may have frozen it for now.
        trainable=before.trainable,
        name=variable.name,
    )
    store(variable, value)
