"""Sums of feature maps, of which some are normalized by batch, and gradients.

A normalization is a factor and a summand of each channel, once its statistics
are known. A sum of one or two maps and an activation of it are then one pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import should_record_backprop


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
    if of.learns:
        ops.leave_balanced(dx)
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
