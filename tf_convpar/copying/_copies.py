"""Copies models with all that they hold.

Keras copies layers by their configs (`clone_model`): attributes that were set
later are lost, layers without a config fail, and seeds are drawn anew. Here
attributes are copied, each object once, so that shared layers, tied weights
and lists of variables stay as they are. The graph of a functional model is run
through again, so that tensors that are kept anywhere, such as the pyramid of a
backbone, are of the copy's graph.
"""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat import keras as private
from tf_convpar._compat.keras import DotNotTrackScope
from tf_convpar._compat.keras import Tracker
from tf_convpar._compat.tensorflow import Trackable
from tf_convpar._compat.tensorflow import is_note_of_checkpoints
from tf_convpar._compat.tensorflow import wrap_tracked
from tf_convpar.copying._callables import callable_like
from tf_convpar.copying._callables import copy_of
from tf_convpar.copying._models import input_like
from tf_convpar.copying._models import join_strategy
from tf_convpar.copying._models import outdated
from tf_convpar.copying._state import CONTAINERS
from tf_convpar.copying._state import RUNNING
from tf_convpar.copying._state import attributes
from tf_convpar.copying._state import empty_like
from tf_convpar.copying._state import holds_state
from tf_convpar.copying._state import holds_symbolic
from tf_convpar.copying._state import is_object
from tf_convpar.copying._state import is_symbolic
from tf_convpar.copying._state import set_attribute
from tf_convpar.placement import PlacedVariable

# Methods that Keras wraps when a layer is made.
_WRAPPED = ("build", "quantize")


class Copies:
    """Copies objects, each once.

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
        enter: Function that is called with a functional model before its
            graph is copied.
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
        # Originals and copies, by the original's `id`. The original is kept, so
        # that no other object gets its `id`.
        self._copied: dict[int, tuple[Any, Any]] = {}
        self._trackers: list[Tracker] = []
        self._left_behind: set[int] = set()
        # Attributes with tensors of graphs, whose layers may not be copied yet.
        self._to_fill: list[tuple[Any, str, Any]] = []
        self.pairs: list[tuple[Any, Any]] = []
        self.optimizers: list[Any] = []

    def of(self, value: Any) -> Any:
        """The copy of a value, or the value itself if that may be shared.

        Raises:
            ValueError: The value holds variables and cannot be copied.
        """
        if id(value) in self._copied:
            return self._copied[id(value)][1]
        if isinstance(value, tf.distribute.Strategy):
            return tf.distribute.get_strategy()
        ways: Sequence[tuple[Any, Callable[[Any], Any]]] = (
            (keras.Variable, self._variable),
            (tf.Variable, self._tf_variable),
            (keras.Operation, self._layer),
            (tuple, self._tuple),
            (CONTAINERS, self._container),
            (RUNNING, copy.deepcopy),
            (tf.random.Generator, self._generator),
        )
        for kinds, make in ways:
            if isinstance(value, kinds):
                return make(value)
        if not holds_state(value):
            return value
        if is_symbolic(value):
            return self._symbolic(value)
        new = callable_like(value, self.of, self._remember)
        if new is not None:
            return self._remember(value, new)
        return self._object(value)

    def finish(self, model: Any) -> None:
        """Restores what depends on identity, once copies are made and placed.

        Args:
            model: The original model.
        """
        while self._to_fill:
            new, name, value = self._to_fill.pop()
            set_attribute(new, name, self.of(value))
        for tracker in self._trackers:
            private.track_anew(tracker)
        for optimizer in self.optimizers:
            private.number_anew(optimizer)
        for node in private.inbound_nodes(model)[:1]:
            # A model that was called in another graph has an `output`.
            inputs = {
                id(x): keras.KerasTensor(x.shape, x.dtype, x.sparse)
                for x in node.input_tensors
            }
            args, kwargs = node.arguments.fill_in(inputs)
            self.of(model)(*args, **kwargs)
        self._reset_states()

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

    def _reset_states(self) -> None:
        """Gives copies the states of the originals, such as those of seeds.

        Layers may draw numbers when a graph is run through; optimizers do not.
        """
        of_optimizers = {id(v) for o in self.optimizers for v in o.variables}
        with tf.init_scope():
            for old, new in list(self._copied.values()):
                if isinstance(new, tf.random.Generator):
                    new.reset(old.state)
                elif (
                    isinstance(new, keras.Variable)
                    and not isinstance(new, PlacedVariable)
                    and not new.trainable
                    and private.stored(new) is not None
                    and id(new) not in of_optimizers
                ):
                    new.assign(old.numpy())

    def _remember(self, old: Any, new: Any) -> Any:
        self._copied[id(old)] = old, new
        return new

    def _fill(self, new: Any, old: Any, but: tuple[str, ...] = ()) -> None:
        """Gives a copy its attributes, all but those named in `but`."""
        self._held_by.append(old)
        for name, value in attributes(old).items():
            if name in private.FRESH:
                vars(new)[name] = private.FRESH[name]()
            elif name in but or isinstance(value, self._leave_out):
                continue
            elif holds_symbolic(value):
                self._to_fill.append((new, name, value))
            else:
                set_attribute(new, name, self.of(value))
        self._held_by.pop()

    def _layer(self, layer: Any) -> Any:
        changed = self._change(layer, self._held_by)
        if changed is not None:
            return self._remember(layer, changed)
        if isinstance(layer, keras.layers.InputLayer):
            return self._remember(layer, input_like(layer))
        if isinstance(layer, keras.Function) and private.nodes_by_depth(layer):
            return self._functional(layer)
        if isinstance(layer, keras.Sequential):
            self._left_behind.update(map(id, outdated(layer)))
            # The graph first, so that layers are copied in its order.
            self.of(private.functional_of(layer))
        if isinstance(layer, keras.layers.TFSMLayer):
            # It is shared: its function, of a file, reads these variables.
            for variable in layer.variables:
                self._remember(variable, variable)
            return self._remember(layer, layer)
        new = self.as_kind(layer, type(layer))
        if isinstance(layer, keras.Model):
            join_strategy(new)
        return new

    def _functional(self, model: Any) -> Any:
        """A copy of a functional model: its graph, and its attributes."""
        self._enter(model)
        for call in private.calls_in_order(model):
            self._call(call)
        inputs, outputs = keras.tree.map_structure(
            self.of, private.structure_of(model)
        )
        if isinstance(model, keras.layers.Layer):
            new = keras.layers.Layer.__new__(type(model))
        else:
            new = keras.Operation.__new__(type(model))
        self._remember(model, new)
        self.pairs.append((model, new))
        with DotNotTrackScope():
            keras.Function.__init__(new, inputs, outputs, name=model.name)
        self._fill(new, model, private.OF_GRAPHS + _WRAPPED)
        if isinstance(model, keras.Model):
            join_strategy(new)
        return new

    def _symbolic(self, tensor: keras.KerasTensor) -> keras.KerasTensor:
        """The tensor of the copy's graph, made up to this tensor."""
        call = private.call_of(tensor)
        if call is None:
            shape, dtype = tensor.shape, tensor.dtype
            new = keras.KerasTensor(shape, dtype, tensor.sparse)
            return self._remember(tensor, new)
        left = [call]
        while left:
            before = [x for x in left[-1].parent_nodes if not self._called(x)]
            if before:
                left += before
            else:
                self._call(left.pop())
        return self._copied[id(tensor)][1]

    def _called(self, call: Any) -> bool:
        return all(id(output) in self._copied for output in call.outputs)

    def _call(self, call: Any) -> None:
        """Calls a copy as a layer was called, once for each call."""
        if self._called(call):
            return
        layer_copy = self.of(call.operation)
        if call.is_input:
            outputs = layer_copy.output
        else:
            # An argument may be a weight, as where two are tied.
            args, kwargs = keras.tree.map_structure(
                lambda x: copy_of(x, self.of),
                (call.arguments.args, call.arguments.kwargs),
            )
            outputs = layer_copy(*args, **kwargs)
        new = keras.tree.flatten(outputs)
        for output, copied in zip(call.outputs, new, strict=True):
            self._remember(output, copied)

    def _variable(self, variable: keras.Variable) -> keras.Variable:
        kind: Any = type(variable)
        if isinstance(variable, PlacedVariable):
            kind = keras.Variable  # The copy is whole until it is placed.
        new = kind.__new__(kind)
        for name, value in vars(variable).items():
            if not is_note_of_checkpoints(name):
                vars(new)[name] = value
        vars(new).pop("layout", None)  # The copy is not laid out.
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
        if isinstance(value, Trackable):
            # TensorFlow tracks too, by wrappers around plain tuples.
            plain = value.__wrapped__
            new = self._tuple(plain)
            return value if new is plain else wrap_tracked(new)
        parts = [self.of(part) for part in value]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        # Not by its own `__new__`, which may take other arguments.
        new = tuple.__new__(type(value), parts)
        if is_object(value):
            self._fill(new, value)
        return new

    def _container(self, value: Any) -> Any:
        """A copy of a dict, a list, a deque or a set, Keras' kinds included."""
        kind: Any = type(value)
        if isinstance(value, Trackable):
            plain = getattr(value, "__wrapped__", None)
            plain = list(value) if plain is None else plain
            return self._remember(value, wrap_tracked(self.of(plain)))
        if isinstance(value, frozenset):
            return self._remember(value, kind([self.of(x) for x in value]))
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
            if base is collections.deque:
                base.__init__(new, (), value.maxlen)
            current = [p for p in value if id(p) not in self._left_behind]
            base.extend(new, [self.of(part) for part in current])
        if is_object(value):
            self._fill(new, value)
        return new

    def _generator(self, value: tf.random.Generator) -> tf.random.Generator:
        """A copy of a generator in its present state."""
        with tf.init_scope():
            new = tf.random.Generator.from_state(
                value.state.numpy(), value.algorithm
            )
        return self._remember(value, new)

    def _object(self, value: Any) -> Any:
        kind: Any = type(value)
        try:
            new = self._remember(value, empty_like(value))
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
