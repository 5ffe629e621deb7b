"""Batch normalization on one device, with what surrounds it, in few passes.

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
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import stored
from tf_convpar.layers import Attached
from tf_convpar.layers import has_note
from tf_convpar.layers import is_inference
from tf_convpar.layers import is_joined
from tf_convpar.layers import is_merged
from tf_convpar.layers import leave_joined
from tf_convpar.layers import leave_unpadded
from tf_convpar.layers import note_of
from tf_convpar.layers import op_activation
from tf_convpar.layers import takes_shards
from tf_convpar.sharding._attach import joined
from tf_convpar.sharding._fusable import activation_of
from tf_convpar.sharding._normalized_sums import MOST_TERMS
from tf_convpar.sharding._normalized_sums import Statistics
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding._normalized_sums import combined
from tf_convpar.sharding._pointwise_layers import merged
from tf_convpar.sharding._pointwise_layers import normalized_groups
from tf_convpar.sharding._pointwise_layers import normalized_pixels
from tf_convpar.sharding._pointwise_layers import product
from tf_convpar.sharding._pointwise_layers import product_in_training
from tf_convpar.sharding._pointwise_layers import rescaled

_L = keras.layers
# Where a tensor has its note; and where one that is made again with what
# follows it has another.
_NOTE, _AGAIN = "_convpar_sum", "_convpar_again"


class _Again(NamedTuple):
    """How a result is made with what follows it, of which it then is a part.

    Attributes:
        run: Makes it, of the name of an activation; and what is `added`.
        adds: Whether `run` adds other maps.
        activations: Which activations it computes.
    """

    run: Callable[..., tf.Tensor]
    adds: bool
    activations: Collection[str]


class Fused(Attached):
    """Takes the place of a layer's `call`: of one that has a note, or reads it.

    ```python
    layer.call = Fused(layer)
    ```

    Args:
        layer: The layer.
        only: Whether nothing else uses what it is called with, for each input.
    """

    def __init__(self, layer: Any, only: Sequence[bool] = (False,)) -> None:
        self._layer = layer
        self._only = only
        self._alone = all(only)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Does what the layer's own `call` does."""
        args, kwargs = joined((args, kwargs))
        if not (is_merged() or in_stateless_scope()) and takes_shards():
            found = self._way()(*args, **kwargs)
            if found is not None:
                return found
        return type(self._layer).call(self._layer, *args, **kwargs)

    def _way(self) -> Callable[..., Any]:
        """What computes the layer; where that returns None, Keras does."""
        layer = self._layer
        ways: dict[type, Callable[..., Any]] = {
            _L.Add: self._added,
            _L.BatchNormalization: self._normalized,
            _L.Concatenate: functools.partial(merged, layer),
            _L.Dense: self._multiplied,
            _L.GroupNormalization: self._in_groups,
            _L.LayerNormalization: functools.partial(normalized_pixels, layer),
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
        found = [tf.convert_to_tensor(variable) for variable in moving]
        if learns:
            moments = tf.stop_gradient(ops.channel_moments(inputs))
            after = ops.moved_moments(found, moments, layer.momentum)
            for variable, new in zip(moving, after, strict=True):
                variable.assign(new)
        else:
            moments = tf.stop_gradient(tf.stack(found))
        of = Statistics(moments, layer.epsilon, learns, names)
        term = Term(inputs, weights, of)
        scaled = note_of(inputs)
        if self._alone and not learns and scaled is not None:
            affine = term.affine()
            result = scaled(*affine)
            again = functools.partial(scaled, *affine)
            return _redone(again, result, scaled.adds, scaled.activations)
        return _noted([term])

    def _added(self, inputs: Any) -> tf.Tensor | None:
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
        """One of two inputs is made again, with the other added to it."""
        two = len(inputs) == len(self._only) == 2
        if not two or inputs[0].shape != inputs[1].shape:
            return None
        pairs = zip(inputs, reversed(inputs), self._only, strict=True)
        for maps, other, alone in reversed([*pairs]):
            again: _Again | None = getattr(maps, _AGAIN, None)
            if alone and again is not None and again.adds:
                added = functools.partial(again.run, added=other)
                return _redone(added, added("linear"), False)
        return None

    def _padded(self, inputs: Any) -> tf.Tensor:
        result: tf.Tensor = type(self._layer).call(self._layer, inputs)
        rows, columns = self._layer.padding
        leave_unpadded(result, inputs, (*rows, *columns))
        return result

    def _multiplied(
        self, inputs: Any, training: Any = None
    ) -> tf.Tensor | None:
        again = product(self._layer, inputs)
        adds = again is not None
        if again is None:
            again = product_in_training(self._layer, inputs)
        if again is None:
            return None
        activation = self._layer.activation
        name = op_activation(activation)
        if name is not None:
            return again(name)
        result = again("linear")
        if activation not in (None, keras.activations.linear):
            return activation(result)
        return _redone(again, result, adds)

    def _in_groups(self, inputs: Any) -> tf.Tensor | None:
        again = normalized_groups(self._layer, inputs)
        if again is None:
            return None
        return _redone(again, again("linear"), adds=False)

    def _activated(self, inputs: Any, **kwargs: Any) -> tf.Tensor | None:
        terms = getattr(inputs, _NOTE, None)
        name = activation_of(self._layer)
        again: _Again | None = getattr(inputs, _AGAIN, None)
        if again is not None and name in again.activations and self._alone:
            return again.run(name)
        if terms is None or name is None:
            return None
        if len(terms) > 1 and name != "relu":
            return None  # What it was given would have to be kept as well.
        result = combined(terms, name)
        if len(terms) == 1 and is_inference():
            scale, offset = terms[0].affine()
            leave_joined(result, terms[0].maps, scale, offset, name)
        return result


def without_note(x: Any) -> Any:
    """A tensor by which a program may differentiate: others are made of it."""
    own = hasattr(x, _NOTE) or hasattr(x, _AGAIN)
    return tf.identity(x) if own or has_note(x) or is_joined(x) else x


def _redone(
    run: Callable[..., tf.Tensor],
    result: tf.Tensor,
    adds: bool,
    activations: Collection[str] = ops.ACTIVATIONS,
) -> tf.Tensor:
    """A result, with a note of how it is made with what follows it."""
    if activations:
        setattr(result, _AGAIN, _Again(run, adds, activations))
    return result


def _noted(terms: list[Term]) -> tf.Tensor:
    result = combined(terms, "linear")
    setattr(result, _NOTE, terms)
    return result
