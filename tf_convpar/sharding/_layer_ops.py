"""Layers that one op of this package computes, whatever is around them.

On one device a layer is also fused with its neighbours, by `Fused`. On shards
each device computes its part of a layer by itself; what needs no neighbour is
the same op there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.ops import NOTHING
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
from tf_convpar.sharding._pooling import pools

_L = keras.layers


def op_call(layer: Any, shapes: Sequence[Any]) -> Callable[..., Any] | None:
    """What computes a layer by ops, in the place of its class's `call`.

    ```python
    call = op_call(layer, [x.shape])
    y = call(layer, x)
    ```

    Args:
        layer: A layer of a graph.
        shapes: Shapes of its inputs.

    Returns:
        A function of the layer and of the arguments of its `call`, for float32
        on a CPU; None where Keras' own code computes the layer.
    """
    if len(shapes) != 1:
        return None
    if pools(layer, shapes[0]):
        return pooled
    method = _METHODS.get(type(layer))
    if method is None or not fuses(layer, shapes):
        return None

    def call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(layer, inputs)
        if result is None:
            result = type(layer).call(layer, inputs, *args, **kwargs)
        return result

    return call


def _in_groups(layer: Any, inputs: Any) -> tf.Tensor | None:
    fusable = normalized_groups(layer, inputs)
    return None if fusable is None else fusable.run(NOTHING)


def _multiplied(layer: Any, inputs: Any) -> tf.Tensor | None:
    name = activation_of(layer)
    fusable = product_in_training(layer, inputs)
    if name not in LONG_ACTIVATIONS or fusable is None:
        return None
    return fusable.run(Epilogue(activation=name))


_METHODS: dict[type, Callable[[Any, Any], tf.Tensor | None]] = {
    _L.Activation: activated_in_one_pass,
    _L.Dense: _multiplied,
    _L.GroupNormalization: _in_groups,
    _L.LayerNormalization: normalized_pixels,
    _L.Normalization: rescaled,
    _L.Rescaling: rescaled,
}
