"""Layers that one op of this package computes on a processor.

On one device a layer is also fused with its neighbours, by `Fused`. On shards
each device computes its part of a layer by itself, with an activation that
follows if the op has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.ops import Epilogue
from tf_convpar.sharding._fusable import activation_of
from tf_convpar.sharding._fusable import fuses
from tf_convpar.sharding._pointwise_layers import LONG_ACTIVATIONS
from tf_convpar.sharding._pointwise_layers import activated_in_one_pass
from tf_convpar.sharding._pointwise_layers import normalized_groups
from tf_convpar.sharding._pointwise_layers import normalized_pixels
from tf_convpar.sharding._pointwise_layers import product_in_training
from tf_convpar.sharding._pointwise_layers import rescaled
from tf_convpar.sharding._pooling import pooled
from tf_convpar.sharding.rules import OpCall

_L = keras.layers


def op_call_of(layer: Any, shapes: Sequence[Any]) -> OpCall | None:
    """What computes a layer by ops; None where Keras' own code does.

    Args:
        layer: A layer of a graph.
        shapes: Shapes of its inputs.
    """
    if len(shapes) != 1:
        return None
    known = _CALLS.get(type(layer))
    if known is None or not fuses(layer, shapes):
        return None
    if _is_linear(layer):
        return known
    return dataclasses.replace(known, activations=())


def _is_linear(layer: Any) -> bool:
    activation = getattr(layer, "activation", None)
    return activation in (None, keras.activations.linear)


def _in_groups(layer: Any, inputs: Any, activation: str) -> tf.Tensor | None:
    fusable = normalized_groups(layer, inputs)
    if fusable is None:
        return None
    return fusable.run(Epilogue(activation=activation))


def _multiplied(layer: Any, inputs: Any, activation: str) -> tf.Tensor | None:
    name = activation if _is_linear(layer) else activation_of(layer)
    fusable = product_in_training(layer, inputs)
    if name not in LONG_ACTIVATIONS or fusable is None:
        return None
    return fusable.run(Epilogue(activation=name))


def _by(method: Callable[[Any, Any], tf.Tensor | None]) -> OpCall:
    return OpCall(lambda layer, inputs, activation: method(layer, inputs))


_CALLS: dict[type, OpCall] = {
    _L.Activation: _by(activated_in_one_pass),
    _L.AveragePooling2D: _by(pooled),
    _L.Dense: OpCall(_multiplied, LONG_ACTIVATIONS),
    _L.GlobalAveragePooling2D: _by(pooled),
    _L.GroupNormalization: OpCall(_in_groups, tuple(ops.ACTIVATIONS)),
    _L.LayerNormalization: _by(normalized_pixels),
    _L.MaxPooling2D: _by(pooled),
    _L.Normalization: _by(rescaled),
    _L.Rescaling: _by(rescaled),
}
