"""Batch normalization on one device, fused with its neighbours in few passes.

Keras computes a normalization by some 25 passes over the feature maps, and the
activation and the residual sum after it by others. Here a normalization takes
its moments, and leaves a note on its result of how that is made of its input.
A sum or an activation that finds the note makes its own result of that input
at once. The result that nobody then uses is never computed, as TensorFlow runs
only what is needed in a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import get_keras_mask
from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import set_keras_mask
from tf_convpar._compat.keras import stored
from tf_convpar.layers import Attached
from tf_convpar.layers import Fusable
from tf_convpar.layers import has_note
from tf_convpar.layers import is_inference
from tf_convpar.layers import is_joined
from tf_convpar.layers import is_merged
from tf_convpar.layers import leave_joined
from tf_convpar.layers import leave_unpadded
from tf_convpar.layers import note_of
from tf_convpar.layers import op_activation
from tf_convpar.layers import takes_shards
from tf_convpar.layers import with_epilogue
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue
from tf_convpar.sharding._attach import joined
from tf_convpar.sharding._fusable import activation_of
from tf_convpar.sharding._normalized_sums import MOST_TERMS
from tf_convpar.sharding._normalized_sums import Statistics
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding._normalized_sums import combined
from tf_convpar.sharding._pointwise_layers import activated_in_one_pass
from tf_convpar.sharding._pointwise_layers import merged
from tf_convpar.sharding._pointwise_layers import normalized_groups
from tf_convpar.sharding._pointwise_layers import normalized_pixels
from tf_convpar.sharding._pointwise_layers import product
from tf_convpar.sharding._pointwise_layers import product_in_training
from tf_convpar.sharding._pointwise_layers import rescaled
from tf_convpar.sharding._pooling import pooled

_L = keras.layers
# Where a normalized tensor has the terms of which it is the sum; and where any
# tensor has the `Fusable` that recomputes it.
_NOTE, _FUSABLE = "_convpar_sum", "_convpar_fusable"


class Fused(Attached):
    """Takes the place of a layer's `call`, to fuse it with its neighbours.

    ```python
    layer.call = Fused(layer)
    ```

    Args:
        layer: The layer.
        sole_user: For each input, whether no other layer uses it.
    """

    def __init__(
        self, layer: Any, sole_user: Sequence[bool] = (False,)
    ) -> None:
        self._layer = layer
        self._sole_user = sole_user
        self._sole_user_of_all = all(sole_user)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does what the layer's own `call` does."""
        args, kwargs = joined((args, kwargs))
        if not (is_merged() or in_stateless_scope()) and takes_shards():
            result = self._method()(*args, **kwargs)
            if result is not None:
                return result
        return type(self._layer).call(self._layer, *args, **kwargs)

    def _method(self) -> Callable[..., Any]:
        """The method for this kind of layer; it returns None for Keras."""
        layer = self._layer
        ways: dict[type, Callable[..., Any]] = {
            _L.Add: self._added,
            _L.AveragePooling2D: functools.partial(pooled, layer),
            _L.BatchNormalization: self._normalized,
            _L.Concatenate: functools.partial(merged, layer),
            _L.Dense: self._multiplied,
            _L.GlobalAveragePooling2D: functools.partial(pooled, layer),
            _L.GroupNormalization: self._in_groups,
            _L.LayerNormalization: functools.partial(normalized_pixels, layer),
            _L.MaxPooling2D: functools.partial(pooled, layer),
            _L.Multiply: functools.partial(merged, layer),
            _L.Normalization: functools.partial(rescaled, layer),
            _L.Rescaling: functools.partial(rescaled, layer),
            _L.ZeroPadding2D: self._padded,
        }
        return ways.get(type(layer), self._activated)

    def _normalized(
        self, inputs: Any, training: Any = None, mask: Any = None
    ) -> tf.Tensor | None:
        layer = self._layer
        float32 = inputs.dtype == layer.compute_dtype == "float32"
        if mask is not None or not float32 or not ops.load():
            return None
        learns = bool(training and layer.trainable)
        names = tuple(
            n for n in ("gamma", "beta") if getattr(layer, n, None) is not None
        )
        weights = tuple(tf.convert_to_tensor(getattr(layer, n)) for n in names)
        moving = [stored(layer.moving_mean), stored(layer.moving_variance)]
        before = [tf.convert_to_tensor(variable) for variable in moving]
        if learns:
            # Second derivatives pass through them, first ones do not.
            moments = ops.channel_moments(inputs)
            after = ops.moved_moments(before, moments, layer.momentum)
            for variable, new in zip(moving, after, strict=True):
                variable.assign(new)
        else:
            moments = tf.stop_gradient(tf.stack(before))
        statistics = Statistics(moments, layer.epsilon, learns, names)
        term = Term(inputs, weights, statistics)
        convolution = note_of(inputs)
        if self._sole_user_of_all and not learns and convolution is not None:
            factor, bias = term.affine()
            return _recomputable(
                with_epilogue(convolution, factor=factor, bias=bias)
            )
        return _noted([term])

    def _added(self, inputs: Any) -> tf.Tensor | None:
        if any(x.dtype != self._layer.compute_dtype for x in inputs):
            return None  # Keras casts them to a common dtype.
        summed = self._added_to_convolution(inputs)
        if summed is not None:
            return summed
        terms = [
            term
            for tensor in inputs
            for term in getattr(tensor, _NOTE, [Term(tensor)])
        ]
        normalized = any(term.statistics is not None for term in terms)
        alike = len({tuple(term.maps.shape) for term in terms}) == 1
        if not (normalized and alike and len(terms) <= MOST_TERMS):
            return None
        return _noted(terms)

    def _added_to_convolution(self, inputs: Any) -> tf.Tensor | None:
        """Recomputes one of two inputs with the other added to it."""
        two = len(inputs) == len(self._sole_user) == 2
        if not two or inputs[0].shape != inputs[1].shape:
            return None
        pairs = zip(inputs, reversed(inputs), self._sole_user, strict=True)
        for maps, other, sole_user in reversed([*pairs]):
            fusable: Fusable | None = getattr(maps, _FUSABLE, None)
            if sole_user and fusable is not None and fusable.adds:
                added = with_epilogue(fusable, added=other)
                return _recomputable(Fusable(added.run))
        return None

    def _padded(self, inputs: Any) -> tf.Tensor:
        result: tf.Tensor = type(self._layer).call(self._layer, inputs)
        rows, columns = self._layer.padding
        leave_unpadded(result, inputs, (*rows, *columns))
        return result

    def _multiplied(
        self, inputs: Any, training: Any = None
    ) -> tf.Tensor | None:
        fusable = product(self._layer, inputs)
        if fusable is None:
            fusable = product_in_training(self._layer, inputs)
        if fusable is None:
            return None
        activation = self._layer.activation
        name = op_activation(activation)
        if name is not None:
            return fusable.run(Epilogue(activation=name))
        if activation not in (None, keras.activations.linear):
            return activation(fusable.run(NOTHING))
        return _recomputable(fusable)

    def _in_groups(self, inputs: Any) -> tf.Tensor | None:
        fusable = normalized_groups(self._layer, inputs)
        return None if fusable is None else _recomputable(fusable)

    def _activated(self, inputs: Any, **kwargs: Any) -> tf.Tensor | None:
        name = activation_of(self._layer)
        if name is None:
            return None
        fusable: Fusable | None = getattr(inputs, _FUSABLE, None)
        if (
            fusable is not None
            and name in fusable.activations
            and self._sole_user_of_all
        ):
            return fusable.run(Epilogue(activation=name))
        terms = getattr(inputs, _NOTE, None)
        if terms is None:
            return activated_in_one_pass(self._layer, inputs)
        if len(terms) > 1 and name != "relu":
            return None  # What it was given would have to be kept as well.
        result = combined(terms, name)
        if len(terms) == 1 and is_inference():
            scale, offset = terms[0].affine()
            leave_joined(result, terms[0].maps, scale, offset, name)
        return result


def without_note(x: Any) -> Any:
    """A tensor's copy without notes, so that results depend on the copy.

    Gradients by it exist then.
    """
    noted = hasattr(x, _NOTE) or hasattr(x, _FUSABLE)
    if not (noted or has_note(x) or is_joined(x)):
        return x
    copy, mask = tf.identity(x), get_keras_mask(x)
    if mask is not None:
        set_keras_mask(copy, mask)
    return copy


def _recomputable(fusable: Fusable) -> tf.Tensor:
    """Computes a result, and notes how to recompute it with later layers."""
    result = fusable.run(NOTHING)
    if fusable.activations:
        setattr(result, _FUSABLE, fusable)
    return result


def _noted(terms: list[Term]) -> tf.Tensor:
    result = combined(terms, "linear")
    setattr(result, _NOTE, terms)
    return result
