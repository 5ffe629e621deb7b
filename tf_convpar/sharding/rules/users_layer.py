"""Layers of the user's own that treat each sample alone."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import keeps_state
from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import stored
from tf_convpar._compat.keras import takes_training
from tf_convpar.layers import ConvParallel
from tf_convpar.sharding.rules._batch_axis import treats_each_sample_alone
from tf_convpar.sharding.rules.each_sample import SampleRule

# Whether layers treat each sample alone, by the layer and its arguments.
_traced: weakref.WeakKeyDictionary[Any, dict[str, bool]] = (
    weakref.WeakKeyDictionary()
)


class OfTheUser(SampleRule):
    """Layers that have no rule, whose class or whose graph says how they work.

    The class says so by `works_per_sample = True`.
    """

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the class says so, and the layer has no state of its own.

        A seed is a state, too. Variables that Keras does not know as weights
        cannot be given to each device.
        """
        if not getattr(layer, "works_per_sample", False):
            return False
        return _is_stateless(layer) and super().holds(layer, shapes)

    def holds_for_call(self, node: Any, shapes: Sequence[Any]) -> bool:
        """Whether the graph of a layer's call in a model says so.

        Args:
            node: The call.
            shapes: Shapes of its inputs and outputs, with the batch.
        """
        layer = node.operation
        is_layer = isinstance(layer, keras.layers.Layer)
        if not is_layer or isinstance(layer, keras.Model) or not layer.built:
            return False
        # Convolutions are split one by one, also those within a layer.
        if any(
            isinstance(one, ConvParallel) or hasattr(one, "kernel_size")
            for one in (layer, *layers_of(layer))
        ):
            return False
        if not _is_stateless(layer):
            return False
        if not SampleRule.holds(self, layer, shapes):
            return False
        known = _traced.setdefault(layer, {})
        key = repr((node.arguments.args, node.arguments.kwargs))
        if key not in known:
            known[key] = _traces_say_so(layer, node)
        return known[key]


def _is_stateless(layer: Any) -> bool:
    every = (layer, *layers_of(layer))
    unknown = any(
        isinstance(value, tf.Variable)
        for one in every
        for value in vars(one).values()
    )
    return not unknown and not any(map(keeps_state, every))


def _traces_say_so(layer: Any, node: Any) -> bool:
    """Whether graphs of a layer's call, in training and not, say it."""
    modes = (True, False) if takes_training(layer) else (None,)
    with tf.init_scope():
        return all(_trace_says_so(layer, node, mode) for mode in modes)


def _trace_says_so(layer: Any, node: Any, training: bool | None) -> bool:
    tensors = node.input_tensors
    own_variables = {id(stored(v)) for v in layer.weights}

    def call(*values: tf.Tensor) -> Any:
        by_id = {id(x): v for x, v in zip(tensors, values, strict=True)}
        args, kwargs = keras.tree.map_structure(
            lambda x: by_id.get(id(x), x),
            (node.arguments.args, node.arguments.kwargs),
        )
        if training is not None:
            kwargs = {**kwargs, "training": training}
        with keras.StatelessScope(
            collect_losses=True, initialize_variables=False
        ) as scope:
            outputs = layer(*args, **kwargs)
        if scope.losses or scope.state_mapping:
            raise ValueError("A loss, or a state.")
        return keras.tree.flatten(outputs)

    specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in tensors]
    try:
        traced = tf.function(call, autograph=False).get_concrete_function(
            *specs
        )
    except Exception:  # Whatever is its own: it is called as before.
        return False
    read = {id(v) for v in traced.graph.variables}
    inputs = traced.inputs[: len(specs)]
    return read <= own_variables and treats_each_sample_alone(
        traced.graph, inputs, traced.outputs
    )
