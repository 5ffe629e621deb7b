"""Copies of models, and of all that is theirs.

Keras copies layers by their configs (`clone_model`): what a layer was given
after it was made, or has worked out for itself, is lost; layers without a
config cannot be copied; and seeds are drawn. Here an object's attributes are
copied instead, each thing once, so that what was one thing stays one thing:
shared layers, tied weights, a variable and the lists that it is in. Functional
models are the exception: their graph is run through again, layer by layer.
"""

from __future__ import annotations

import collections
import copy
import functools
import types
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.models.functional import Functional
from keras.src.ops.function import Function
from keras.src.utils.tracking import DotNotTrackScope
from keras.src.utils.tracking import Tracker

from tf_convpar.copying._state import CONTAINERS
from tf_convpar.copying._state import RUNNING
from tf_convpar.copying._state import contents
from tf_convpar.copying._state import holds_state
from tf_convpar.copying._state import is_object
from tf_convpar.copying._state import is_tf_function
from tf_convpar.placement import PlacedVariable

# What `keras.Function` works out of a graph.
_GRAPH = (
    *("_inputs_struct", "_outputs_struct", "_inputs", "_outputs"),
    *("_nodes", "_nodes_by_depth", "_operations", "_operations_by_depth"),
)
# What a copy begins with instead: it has been called by nobody, and traced.
_FRESH: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("_inbound_nodes", "_outbound_nodes", "_losses"), list),
    "_loss_ids": set,
    **dict.fromkeys(
        (
            *("train_function", "test_function", "predict_function"),
            *("_epoch_iterator", "_eval_epoch_iterator"),
        ),
        type(None),
    ),
}
# Keras wraps these for each layer when it is made.
_WRAPPED = ("build", "quantize")


class Copies:
    """Copies of things, each made once.

    ```python
    copies = Copies()
    model = copies.of(original)
    copies.finish(original)
    ```

    New variables belong to the strategy in scope, and are on its chief.

    Args:
        change: What takes the place of a layer, if anything does. It is given
            the layer, and those that it is held by, the outermost first.
        enter: Called before the graph of a functional model is copied.
        leave_out: What copies do not get, by type.
    """

    def __init__(
        self,
        change: Callable[[Any, Sequence[Any]], Any] = lambda layer, by: None,
        enter: Callable[[Any], None] = lambda model: None,
        leave_out: tuple[type, ...] = (),
    ) -> None:
        self._change = change
        self._enter = enter
        self._leave_out = leave_out
        self._held_by: list[Any] = []
        # By identity, the original kept, so that no other gets its.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._trackers: list[Tracker] = []
        self._left_behind: set[int] = set()
        # Of layers, each before its copy; and optimizers alone.
        self.pairs: list[tuple[Any, Any]] = []
        self.optimizers: list[Any] = []

    def of(self, value: Any) -> Any:
        """The copy of anything: the thing itself where it may be shared.

        Raises:
            ValueError: It holds variables, and cannot be copied.
        """
        if id(value) in self._made:
            return self._made[id(value)][1]
        if isinstance(value, tf.distribute.Strategy):
            return tf.distribute.get_strategy()
        ways: Sequence[tuple[Any, Callable[[Any], Any]]] = (
            (keras.Variable, self._variable),
            (tf.Variable, self._tf_variable),
            (keras.Operation, self._layer),
            (tuple, self._tuple),
            (CONTAINERS, self._container),
            (RUNNING, copy.deepcopy),
        )
        for kinds, make in ways:
            if isinstance(value, kinds):
                return make(value)
        if not holds_state(value):
            return value
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            keywords = {k: self.of(v) for k, v in value.keywords.items()}
            args = [self.of(arg) for arg in value.args]
            return functools.partial(self.of(value.func), *args, **keywords)
        return self._object(value)

    def finish(self, model: Any) -> None:
        """Once all copies are made, and placed: what goes by identity.

        Args:
            model: The one that was to be copied.
        """
        for tracker in self._trackers:
            tracker.stored_ids = {
                name: {id(item) for item in store}
                for name, (_, store) in tracker.config.items()
            }
        for optimizer in self.optimizers:
            optimizer._trainable_variables_indices = {
                optimizer._var_key(variable): i
                for i, variable in enumerate(optimizer._trainable_variables)
            }
        if model._inbound_nodes:
            # It was part of another graph, and so knows `model.output`.
            node = model._inbound_nodes[0]
            inputs = {
                id(x): keras.KerasTensor(x.shape, x.dtype, x.sparse)
                for x in node.input_tensors
            }
            args, kwargs = node.arguments.fill_in(inputs)
            self.of(model)(*args, **kwargs)

    def as_kind(self, layer: Any, kind: Any) -> Any:
        """The copy of a layer, of another class with the same attributes."""
        if isinstance(layer, keras.layers.Layer):
            new = keras.layers.Layer.__new__(kind)
        else:
            new = keras.Operation.__new__(kind)
        self._remember(layer, new)
        self.pairs.append((layer, new))
        self._fill(new, layer, _WRAPPED)
        return new

    def _remember(self, old: Any, new: Any) -> Any:
        self._made[id(old)] = old, new
        return new

    def _fill(self, new: Any, old: Any, but: tuple[str, ...] = ()) -> None:
        """Gives a copy its attributes."""
        self._held_by.append(old)
        for name, value in vars(old).items():
            if name in _FRESH:
                vars(new)[name] = _FRESH[name]()
            elif name not in but and not isinstance(value, self._leave_out):
                vars(new)[name] = self.of(value)
        self._held_by.pop()

    def _layer(self, layer: Any) -> Any:
        changed = self._change(layer, self._held_by)
        if changed is not None:
            return self._remember(layer, changed)
        if isinstance(layer, keras.layers.InputLayer):
            return self._remember(layer, _input_like(layer))
        if isinstance(layer, Functional) and hasattr(layer, "_nodes_by_depth"):
            return self._functional(layer)
        if isinstance(layer, keras.Sequential):
            self._left_behind.update(map(id, _outdated(layer)))
            self.of(layer._functional)  # First: it is the order of its layers.
        new = self.as_kind(layer, type(layer))
        if isinstance(layer, keras.Model):
            _join_strategy(new)
        return new

    def _functional(self, model: Any) -> Any:
        """The same graph of copied layers, and whatever else the model has."""
        self._enter(model)
        inputs = keras.tree.map_structure(
            lambda x: self.of(x._keras_history.operation).output,
            model._inputs_struct,
        )
        outputs = model._run_through_graph(inputs, operation_fn=self.of)
        new = keras.layers.Layer.__new__(type(model))
        self._remember(model, new)
        self.pairs.append((model, new))
        with DotNotTrackScope():
            Function.__init__(new, inputs, outputs, name=model.name)
        self._fill(new, model, _GRAPH + _WRAPPED)
        _join_strategy(new)
        return new

    def _variable(self, variable: keras.Variable) -> keras.Variable:
        kind: Any = type(variable)
        if isinstance(variable, PlacedVariable):
            kind = keras.Variable  # Whole, until it is placed.
        new = kind.__new__(kind)
        for name, value in vars(variable).items():
            # `_self_...` is what checkpoints note of the very variable.
            if not name.startswith("_self_") and name != "_value":
                vars(new)[name] = value
        new._value = None
        if variable._value is not None:
            # Tapes watch what TensorFlow takes for trainable, frozen or not.
            new._trainable = variable._value.trainable
            with tf.init_scope():
                new._initialize(variable.numpy())
            new._trainable = variable._trainable
        return self._remember(variable, new)

    def _tf_variable(self, variable: tf.Variable) -> tf.Variable:
        with tf.init_scope():
            new = tf.Variable(
                variable.numpy(),
                trainable=variable.trainable,
                name=variable.name.split(":")[0],
                dtype=variable.dtype,
            )
        return self._remember(variable, new)

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = [self.of(part) for part in value]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        kind: Any = type(value)
        return kind(*parts) if hasattr(value, "_fields") else kind(parts)

    def _container(self, value: Any) -> Any:
        """A dict, a list or a set, those by which Keras tracks among them."""
        kind: Any = type(value)
        if isinstance(value, tf.__internal__.tracking.Trackable):
            # TensorFlow tracks too, by containers around the plain ones.
            plain = dict(value) if isinstance(value, dict) else list(value)
            return self._remember(
                value, tf.__internal__.tracking.wrap(self.of(plain))
            )
        new = self._remember(value, kind.__new__(kind))
        if isinstance(value, collections.defaultdict):
            new.default_factory = value.default_factory
        # By the plain type's methods: these would track once more.
        if isinstance(value, dict):
            ordered = isinstance(value, collections.OrderedDict)
            base: Any = collections.OrderedDict if ordered else dict
            for key, part in value.items():
                base.__setitem__(new, self.of(key), self.of(part))
        elif isinstance(value, set):
            set.update(new, [self.of(part) for part in value])
        else:
            base = list if isinstance(value, list) else collections.deque
            current = [p for p in value if id(p) not in self._left_behind]
            base.extend(new, [self.of(part) for part in current])
        if is_object(value):
            self._fill(new, value)
        return new

    def _function(self, function: types.FunctionType) -> Any:
        """The same code, of the copies of what it has from around it."""
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        new = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            cells,
        )
        new.__kwdefaults__ = function.__kwdefaults__
        vars(new).update(vars(function))
        self._remember(function, new)
        if len(contents(function)) < len(cells):
            raise ValueError(
                f"Expected all that '{function.__qualname__}' uses to be there "
                "already. Received: a function that uses what is yet to be "
                "assigned. Parallelize the model after that."
            )
        for cell, value in zip(cells, contents(function), strict=True):
            cell.cell_contents = self.of(value) if holds_state(value) else value
        return new

    def _object(self, value: Any) -> Any:
        kind: Any = type(value)
        if is_tf_function(value):
            return value._clone(python_function=self.of(value.python_function))
        try:
            new = self._remember(value, object.__new__(kind))
        except TypeError as error:
            raise ValueError(
                "Expected what a model holds to be copyable, or to hold no "
                f"variables and layers. Received: {value!r} (of type "
                f"{kind.__module__}.{kind.__qualname__}), which holds some: "
                f"{error}. Make it an object of a Python class."
            ) from error
        self._fill(new, value)
        if isinstance(value, Tracker):
            self._trackers.append(new)
        if isinstance(value, keras.optimizers.Optimizer):
            self.optimizers.append(new)
        return new


def _input_like(layer: Any) -> Any:
    new = keras.layers.InputLayer(
        batch_shape=layer.batch_shape,
        dtype=layer.dtype,
        sparse=layer.sparse,
        ragged=layer.ragged,
        optional=layer.optional,
        name=layer.name,
    )
    # By which a model finds its inputs in a dict.
    new.output.name = layer.output.name
    return new


def _outdated(model: keras.Sequential) -> list[Any]:
    """The graphs that a model had before its last layer was added.

    Keras goes on tracking them.
    """
    _, tracked = model._tracker.config["layers"]
    current = {id(model._functional), *map(id, model._layers)}
    return [
        layer
        for layer in tracked
        if isinstance(layer, Functional) and id(layer) not in current
    ]


def _join_strategy(model: Any) -> None:
    """The strategy in scope trains the model, as if it were made there."""
    strategy = None
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    vars(model)["_distribute_strategy"] = strategy
