"""Copies of models, and of all that is theirs.

Keras copies layers by their configs (`clone_model`). What a layer was given
after it was made, or has worked out for itself, is lost then. Layers without a
config cannot be copied, and seeds are drawn anew. Here an object's attributes
are copied instead. Each thing is copied once, so that what was one thing stays
one thing: shared layers, tied weights, a variable and the lists that it is in.
Functional models are the exception: their graph is run through again, layer by
layer.
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

from tf_convpar._compat import keras as private
from tf_convpar._compat.keras import DotNotTrackScope
from tf_convpar._compat.keras import Functional
from tf_convpar._compat.keras import Tracker
from tf_convpar._compat.tensorflow import Trackable
from tf_convpar._compat.tensorflow import clone_function
from tf_convpar._compat.tensorflow import is_note_of_checkpoints
from tf_convpar._compat.tensorflow import wrap_tracked
from tf_convpar.copying._state import CONTAINERS
from tf_convpar.copying._state import RUNNING
from tf_convpar.copying._state import contents
from tf_convpar.copying._state import holds_state
from tf_convpar.copying._state import is_object
from tf_convpar.copying._state import is_tf_function
from tf_convpar.placement import PlacedVariable

# Methods that Keras wraps for each layer when the layer is made.
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
        change: Function that returns what takes the place of a layer, or None
            for a plain copy. It is given the layer and the objects that hold
            it, the outermost first.
        enter: Function that is called with a functional model before the graph
            of that model is copied.
        leave_out: Types of the attribute values that copies do not get.

    Attributes:
        pairs: Layers, each with its copy, in the order of copying.
        optimizers: Copies of optimizers.
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
        # Each original with its copy, by the original's `id`. The original is
        # kept, so that no other object gets its `id`.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._trackers: list[Tracker] = []
        self._left_behind: set[int] = set()
        self.pairs: list[tuple[Any, Any]] = []
        self.optimizers: list[Any] = []

    def of(self, value: Any) -> Any:
        """The copy of a value, or the value itself if that may be shared.

        Raises:
            ValueError: The value holds variables and cannot be copied.
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
        """Puts right what goes by identity, once copies are made and placed.

        Args:
            model: The original model.
        """
        for tracker in self._trackers:
            private.track_anew(tracker)
        for optimizer in self.optimizers:
            private.number_anew(optimizer)
        for node in private.inbound_nodes(model)[:1]:
            # The model was called in another graph, and so has an `output`. The
            # copy gets one in the same way.
            inputs = {
                id(x): keras.KerasTensor(x.shape, x.dtype, x.sparse)
                for x in node.input_tensors
            }
            args, kwargs = node.arguments.fill_in(inputs)
            self.of(model)(*args, **kwargs)

    def as_kind(self, layer: Any, kind: Any) -> Any:
        """A copy of a layer, of class `kind` and with the same attributes."""
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
        """Gives a copy its attributes, all but those named in `but`."""
        self._held_by.append(old)
        for name, value in vars(old).items():
            if name in private.FRESH:
                vars(new)[name] = private.FRESH[name]()
            elif name not in but and not isinstance(value, self._leave_out):
                vars(new)[name] = self.of(value)
        self._held_by.pop()

    def _layer(self, layer: Any) -> Any:
        changed = self._change(layer, self._held_by)
        if changed is not None:
            return self._remember(layer, changed)
        if isinstance(layer, keras.layers.InputLayer):
            return self._remember(layer, _input_like(layer))
        if isinstance(layer, Functional) and private.nodes_by_depth(layer):
            return self._functional(layer)
        if isinstance(layer, keras.Sequential):
            self._left_behind.update(map(id, _outdated(layer)))
            # The graph first, so that layers are copied in its order.
            self.of(private.functional_of(layer))
        new = self.as_kind(layer, type(layer))
        if isinstance(layer, keras.Model):
            _join_strategy(new)
        return new

    def _functional(self, model: Any) -> Any:
        """A copy: the graph of copied layers, and whatever else a model has."""
        self._enter(model)
        inputs = keras.tree.map_structure(
            lambda x: self.of(private.made_by(x)).output,
            private.inputs_of(model),
        )
        outputs = private.run_graph(model, inputs, self.of)
        new = keras.layers.Layer.__new__(type(model))
        self._remember(model, new)
        self.pairs.append((model, new))
        with DotNotTrackScope():
            keras.Function.__init__(new, inputs, outputs, name=model.name)
        self._fill(new, model, private.OF_GRAPHS + _WRAPPED)
        _join_strategy(new)
        return new

    def _variable(self, variable: keras.Variable) -> keras.Variable:
        kind: Any = type(variable)
        if isinstance(variable, PlacedVariable):
            kind = keras.Variable  # The copy is whole until it is placed.
        new = kind.__new__(kind)
        for name, value in vars(variable).items():
            if not is_note_of_checkpoints(name):
                vars(new)[name] = value
        vars(new).pop("layout", None)  # It is where the copy does not lie.
        private.store(new, None)
        value = private.stored(variable)
        if value is not None:
            with tf.init_scope():
                private.initialize(new, variable.numpy(), value.trainable)
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
        """A copy of a dict, a list, a deque or a set, also of Keras' own kinds.

        Keras' containers track what is put in them.
        """
        kind: Any = type(value)
        if isinstance(value, Trackable):
            # TensorFlow tracks too, by wrappers around plain containers.
            plain = dict(value) if isinstance(value, dict) else list(value)
            return self._remember(value, wrap_tracked(self.of(plain)))
        new = self._remember(value, kind.__new__(kind))
        if isinstance(value, collections.defaultdict):
            new.default_factory = value.default_factory
        # Filled by the plain type's methods: its own would track once more.
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
        """A function of the same code, with copies of what its closure has."""
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
            return clone_function(value, self.of(value.python_function))
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
    # A model finds its inputs in a dict by this name.
    new.output.name = layer.output.name
    return new


def _outdated(model: keras.Sequential) -> list[Any]:
    """The graphs that a model had before its last layer was added.

    Keras goes on tracking them; copies leave them out.
    """
    own = (
        private.functional_of(model),
        *private.layers_of(model, recursive=False),
    )
    current = set(map(id, own))
    return [
        layer
        for layer in private.tracked_layers(model)
        if isinstance(layer, Functional) and id(layer) not in current
    ]


def _join_strategy(model: Any) -> None:
    """Lets the strategy in scope train a model, as if it were made there."""
    strategy = None
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    private.join(model, strategy)
