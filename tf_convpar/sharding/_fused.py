"""Batch normalization on one device, with what surrounds it, in few passes.

Keras computes a normalization by some 25 passes over the feature maps, and the
activation and the residual sum after it by others. Here a normalization takes
its moments, and leaves a note on its result of how that is made of its input.
A sum or an activation that finds the note makes its own result of that input
at once. The result that nobody then uses is never computed, as TensorFlow runs
only what is needed in a step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import in_stateless_scope
from tf_convpar._compat.keras import stored
from tf_convpar._compat.tensorflow import should_record_backprop
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
from tf_convpar.sharding._pixels import merged
from tf_convpar.sharding._pixels import normalized_groups
from tf_convpar.sharding._pixels import normalized_pixels
from tf_convpar.sharding._pixels import product
from tf_convpar.sharding._pixels import product_in_training
from tf_convpar.sharding._pixels import rescaled
from tf_convpar.sharding.rules import moved

_L = keras.layers
# Where a tensor has its note; and that of one which is a convolution's, how it
# is made with an activation.
_NOTE, _AGAIN = "_convpar_sum", "_convpar_again"
# Terms that are added in one pass.
_MOST_TERMS = 2


@dataclasses.dataclass(frozen=True)
class Statistics:
    """By what feature maps are normalized, for each channel.

    Attributes:
        mean: Their means.
        variance: Their variances.
        epsilon: What is added to variances.
        learns: Whether both are of the maps themselves.
        names: Which weights there are, of `gamma` and `beta`.
    """

    mean: tf.Tensor
    variance: tf.Tensor
    epsilon: float
    learns: bool
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Term:
    """Feature maps in a sum, as they are or normalized.

    Attributes:
        maps: Before they are normalized.
        weights: Values of the weights that `statistics` names.
        statistics: None for maps as they are.
    """

    maps: tf.Tensor
    weights: tuple[tf.Tensor, ...] = ()
    statistics: Statistics | None = None

    def affine(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The factor and the summand of each channel."""
        of = self.statistics
        if of is None:
            ones = tf.ones(self.maps.shape[-1], self.maps.dtype)
            return ones, tf.zeros_like(ones)
        given = dict(zip(of.names, self.weights, strict=True))
        return ops.affine(
            *(of.mean, of.variance, given.get("gamma"), given.get("beta")),
            of.epsilon,
        )


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
            if isinstance(self._layer, _L.BatchNormalization):
                found = self._normalized(*args, **kwargs)
            elif isinstance(self._layer, _L.ZeroPadding2D):
                found = self._padded(*args, **kwargs)
            elif isinstance(self._layer, _L.Add):
                found = self._added(*args, **kwargs)
            elif isinstance(self._layer, _L.Concatenate | _L.Multiply):
                found = merged(self._layer, *args, **kwargs)
            elif isinstance(self._layer, _L.LayerNormalization):
                found = normalized_pixels(self._layer, *args, **kwargs)
            elif isinstance(self._layer, _L.GroupNormalization):
                found = self._in_groups(*args, **kwargs)
            elif isinstance(self._layer, _L.Rescaling | _L.Normalization):
                found = rescaled(self._layer, *args, **kwargs)
            elif isinstance(self._layer, _L.Dense):
                found = self._multiplied(*args, **kwargs)
            else:
                found = self._activated(*args, **kwargs)
            if found is not None:
                return found
        return type(self._layer).call(self._layer, *args, **kwargs)

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
            moments = tf.unstack(ops.channel_moments(inputs))
            for variable, new in zip(
                moving, moved(layer, found, moments), strict=True
            ):
                variable.assign(new)
            found = moments
        mean, variance = map(tf.stop_gradient, found)
        of = Statistics(mean, variance, layer.epsilon, learns, names)
        term = Term(inputs, weights, of)
        scaled = note_of(inputs)
        if self._alone and not learns and scaled is not None:
            affine = term.affine()
            result = scaled(*affine)
            if scaled.activates:
                again: Any = functools.partial(scaled, *affine)
                again.adds = scaled.adds
                setattr(result, _AGAIN, again)
            return result
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
        if not (normalized and alike and len(terms) <= _MOST_TERMS):
            return None
        return _noted(terms)

    def _added_to_convolution(self, inputs: Any) -> tf.Tensor | None:
        """One of two inputs is made again, with the other added to it."""
        two = len(inputs) == len(self._only) == 2
        if not two or inputs[0].shape != inputs[1].shape:
            return None
        pairs = zip(inputs, reversed(inputs), self._only, strict=True)
        for maps, other, alone in reversed([*pairs]):
            again: Any = getattr(maps, _AGAIN, None)
            if alone and getattr(again, "adds", False):
                added = functools.partial(again, added=other)
                result: tf.Tensor = added("linear")
                setattr(result, _AGAIN, added)
                return result
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
        found: Any = again
        found.adds = adds
        setattr(result, _AGAIN, found)
        return result

    def _in_groups(self, inputs: Any) -> tf.Tensor | None:
        again = normalized_groups(self._layer, inputs)
        if again is None:
            return None
        result = again("linear")
        setattr(result, _AGAIN, again)
        return result

    def _activated(self, inputs: Any, **kwargs: Any) -> tf.Tensor | None:
        terms = getattr(inputs, _NOTE, None)
        name = activation_of(self._layer)
        again = getattr(inputs, _AGAIN, None)
        if again is not None and name is not None and self._alone:
            found: tf.Tensor = again(name)
            return found
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


def _noted(terms: list[Term]) -> tf.Tensor:
    result = combined(terms, "linear")
    setattr(result, _NOTE, terms)
    return result


def combined(terms: Sequence[Term], activation: str) -> tf.Tensor:
    """An activation of the sum of feature maps, of which some are normalized.

    Args:
        terms: One or two, of one shape.
        activation: As for `ops.scale_channels`; of two terms `"linear"` or
            `"relu"`.
    """
    given = [value for term in terms for value in (term.maps, *term.weights)]

    @tf.custom_gradient
    def run(*given: tf.Tensor) -> Any:
        own = _regrouped(terms, given)
        affine = [term.affine() for term in own]
        y = ops.scale_channels(
            [term.maps for term in own],
            [scale for scale, _ in affine],
            tf.add_n([offset for _, offset in affine]),
            activation=activation,
        )

        def gradient(dy: tf.Tensor) -> Sequence[tf.Tensor]:
            if should_record_backprop([dy, *given]):
                # What is written out below has no gradient of its own.
                with tf.GradientTape() as tape:
                    tape.watch(given)
                    result = _in_tensorflow(own, activation)
                return tape.gradient(result, given, dy)
            left = activation
            if len(own) > 1 and activation == "relu":
                dy = tf.raw_ops.ReluGrad(gradients=dy, features=y)
                left = "linear"
            grads = []
            for term in own:
                of = term.statistics
                grads += [dy] if of is None else _gradients(term, of, dy, left)
            return grads

        return y, gradient

    found: tf.Tensor = run(*given)
    return found


def _regrouped(terms: Sequence[Term], given: Sequence[tf.Tensor]) -> list[Term]:
    """The terms, made of these tensors."""
    left, found = list(given), []
    for term in terms:
        maps, *weights = left[: 1 + len(term.weights)]
        del left[: 1 + len(term.weights)]
        found.append(
            dataclasses.replace(term, maps=maps, weights=tuple(weights))
        )
    return found


def _gradients(
    term: Term, of: Statistics, dy: tf.Tensor, activation: str
) -> list[tf.Tensor]:
    """Gradients by the maps and the weights of y = f(scale x + offset).

    With g = dy f'(..), x^ = (x - mean) inverse and n numbers in each channel:
    d beta = sum g, d gamma = sum g x^, and where mean and variance are of x
    itself, dx = scale (g - d beta / n - x^ d gamma / n).
    """
    x = term.maps
    inverse = tf.math.rsqrt(of.variance + of.epsilon)
    scale, offset = term.affine()
    if activation == "linear":
        sums = ops.channel_sums(dy, x, of.mean)
    else:
        sums = ops.activated_sums(dy, x, of.mean, scale, offset, activation)
    beta, centred = tf.unstack(sums)
    by = {"gamma": centred * inverse, "beta": beta}
    weights = [by[name] for name in of.names]
    if of.learns:
        n = tf.cast(tf.maximum(tf.size(x) // x.shape[-1], 1), x.dtype)
        by_maps = -scale * inverse * by["gamma"] / n
        by_all = -scale * beta / n - by_maps * of.mean
    else:
        by_maps = by_all = tf.zeros_like(scale)
    if activation != "linear":
        dx = ops.activated_gradient(
            dy, x, scale, offset, by_maps, by_all, activation
        )
    elif of.learns:
        dx = ops.scale_channels([dy, x], [scale, by_maps], by_all)
    else:
        dx = ops.scale_channels([dy], [scale], by_all)
    return [dx, *weights]


def _in_tensorflow(terms: Sequence[Term], activation: str) -> tf.Tensor:
    """The same by ops that have gradients of any order."""
    parts = []
    for term in terms:
        of, x = term.statistics, term.maps
        if of is not None and of.learns:
            axes = list(range(len(x.shape) - 1))
            mean = tf.reduce_mean(x, axes)
            variance = tf.reduce_mean(tf.square(x - mean), axes)
            of = dataclasses.replace(of, mean=mean, variance=variance)
            term = dataclasses.replace(term, statistics=of)  # noqa: PLW2901
        scale, offset = term.affine()
        parts.append(x * scale + offset)
    total = tf.add_n(parts)
    return ops.scale_channels(
        [total],
        [tf.ones(total.shape[-1], total.dtype)],
        tf.zeros(total.shape[-1], total.dtype),
        activation=activation,
        native=False,
    )
