"""Sums of feature maps, of which some are normalized by batch, and gradients.

A normalization is a factor and a summand of each channel, once its statistics
are known. A sum of one or two maps and an activation of it are then one pass.

Where the statistics are those of maps on several devices, what comes back
through `combined` is no derivative, but what `with_moments` makes the
derivatives of (`_moments`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import should_record_backprop

# Terms that are added in one pass.
MOST_TERMS = 2


class Exchange:
    """What the parts of one normalization on several devices share.

    Attributes:
        made: The activations of the results that were made of it.
        left: Through which of them gradients have not passed yet where they
            come back to `with_moments`.
        exact: Whether what comes back are derivatives, as they must be from
            when on a tape has recorded them.
        moments: For each device, by its number, the moments of all maps.
        one_of_n: For each device 1 / n, of n samples on all devices; 0 where
            its own do not count.
    """

    def __init__(self) -> None:
        self.made: list[str] = []
        self.left = "linear"
        self.exact = False
        self.moments: list[tf.Tensor] = []
        self.one_of_n: list[tf.Tensor] = []


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Means and variances by which feature maps are normalized.

    Attributes:
        moments: Their means and variances, `(2, channels)`.
        epsilon: What is added to variances.
        learns: Whether both are of the maps themselves.
        names: Which weights there are, of `gamma` and `beta`.
        exchange: What is shared with other devices, if they are of maps there
            as well.
    """

    moments: tf.Tensor
    epsilon: float
    learns: bool
    names: tuple[str, ...]
    exchange: Exchange | None = None


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

    def affine(self, native: bool | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The factor and the summand of each channel."""
        of = self.statistics
        if of is None:
            ones = tf.ones(self.maps.shape[-1], self.maps.dtype)
            return ones, tf.zeros_like(ones)
        given = dict(zip(of.names, self.weights, strict=True))
        return ops.affine(
            *(of.moments, given.get("gamma"), given.get("beta")),
            of.epsilon,
            native=native,
        )

    @property
    def exchange(self) -> Exchange | None:
        """What is shared with other devices, if anything is."""
        return None if self.statistics is None else self.statistics.exchange

    def tensors(self) -> list[tf.Tensor]:
        """The tensors with respect to which gradients are computed."""
        of = self.statistics
        shared = of is not None and of.exchange is not None
        moments = [of.moments] if of and shared else []
        return [self.maps, *self.weights, *moments]

    def of(self, given: Sequence[tf.Tensor]) -> Term:
        """The same, made of these tensors."""
        count = 1 + len(self.weights)
        maps, *weights = given[:count]
        of = self.statistics
        if of is not None and len(given) > count:
            (moments,) = given[count:]
            of = dataclasses.replace(of, moments=moments)
        return Term(maps, tuple(weights), of)


def combined(
    terms: Sequence[Term],
    activation: str,
    axis: int = -1,
    native: bool | None = None,
) -> tf.Tensor:
    """An activation of the sum of feature maps, of which some are normalized.

    Args:
        terms: One or two, of one shape.
        activation: As for `ops.scale_channels`; of two terms `"linear"` or
            `"relu"`.
        axis: The channel axis; the last one with an activation.
        native: As for `ops.scale_channels`.
    """
    given = [tensor for term in terms for tensor in term.tensors()]
    for term in terms:
        if term.exchange is not None and activation not in term.exchange.made:
            term.exchange.made.append(activation)

    @tf.custom_gradient
    def run(*given: tf.Tensor) -> Any:
        own = regrouped(terms, given)
        y = _scaled(own, activation, axis, native)

        def gradient(dy: tf.Tensor) -> Sequence[tf.Tensor]:
            exchanges = [t.exchange for t in own if t.exchange is not None]
            exact = should_record_backprop([dy, *given])
            # What has recorded derivatives adds others to them.
            exact = exact or any(exchange.exact for exchange in exchanges)
            for exchange in exchanges:
                exchange.exact = exact
            if exact:
                # What is written out below has no gradient of its own.
                return derivatives(
                    lambda *g: _in_tensorflow(
                        regrouped(terms, g), activation, axis
                    ),
                    given,
                    dy,
                )
            left = activation
            if len(own) > 1 and activation == "relu":
                dy = tf.raw_ops.ReluGrad(gradients=dy, features=y)
                left = "linear"
            elif any(len(exchange.made) > 1 for exchange in exchanges):
                before = _scaled(own, "linear", axis, native)
                dy = ops.passed_back(dy, before, left)
                left = "linear"
            grads = []
            for term in own:
                of = term.statistics
                if of is None:
                    grads.append(dy)
                    continue
                sums = _sums(term, dy, left, axis, native)
                if of.exchange is not None:
                    of.exchange.left = left
                    unused = map(tf.zeros_like, term.weights)
                    grads += [dy, *unused, sums]
                    continue
                one_of_n = tf.math.divide_no_nan(
                    tf.cast(term.maps.shape[axis], dy.dtype),
                    tf.cast(tf.size(term.maps), dy.dtype),
                )
                grads += gradients_of(
                    term, dy, sums, one_of_n, left, axis, native
                )
                if of.learns:
                    ops.leave_balanced(grads[-1 - len(term.weights)])
            return grads

        return y, gradient

    y: tf.Tensor = run(*given)
    return y


def regrouped(terms: Sequence[Term], given: Sequence[tf.Tensor]) -> list[Term]:
    """The terms, made of these tensors."""
    left, regrouped_terms = list(given), []
    for term in terms:
        count = len(term.tensors())
        regrouped_terms.append(term.of(left[:count]))
        del left[:count]
    return regrouped_terms


def _scaled(
    terms: Sequence[Term], activation: str, axis: int, native: bool | None
) -> tf.Tensor:
    affine = [term.affine(native) for term in terms]
    return ops.scale_channels(
        [term.maps for term in terms],
        [scale for scale, _ in affine],
        tf.add_n([offset for _, offset in affine]),
        axis,
        activation=activation,
        native=native,
    )


def _sums(
    term: Term, dy: tf.Tensor, activation: str, axis: int, native: bool | None
) -> tf.Tensor:
    """Sums over each channel of g = dy f'(..), and of g (x - mean)."""
    of: Any = term.statistics
    mean = of.moments[0]
    if activation == "linear":
        return ops.channel_sums(dy, term.maps, mean, axis, native=native)
    scale, offset = term.affine(native)
    return ops.activated_sums(
        dy, term.maps, mean, scale, offset, activation, native=native
    )


def gradients_of(
    term: Term,
    dy: tf.Tensor,
    sums: tf.Tensor,
    one_of_n: tf.Tensor,
    activation: str,
    axis: int,
    native: bool | None,
) -> list[tf.Tensor]:
    """Gradients by the maps and the weights of y = f(scale x + offset).

    `ops.batch_normalization_gradient` has the formula, where moments are of x
    itself; g = dy f'(..) takes the place of dy there.

    Args:
        term: What was normalized.
        dy: Gradients of the result.
        sums: As `_sums` has them, of all maps that were normalized together.
        one_of_n: 1 / n.
        activation: f.
        axis: The channel axis.
        native: As for `ops.scale_channels`.
    """
    x = term.maps
    of: Any = term.statistics
    scale, offset = term.affine(native)
    given = dict(zip(of.names, term.weights, strict=True))
    by_maps, by_all, by_gamma = ops.batch_normalization_gradient(
        *(sums, of.moments, given.get("gamma"), one_of_n, of.epsilon),
        give_way=of.exchange is not None,
        native=native,
    )
    by = {"gamma": by_gamma, "beta": sums[0]}
    if not of.learns:
        by_maps = by_all = tf.zeros_like(scale)
    if activation != "linear":
        dx = ops.activated_gradient(
            dy, x, scale, offset, by_maps, by_all, activation, native=native
        )
    elif of.learns:
        dx = ops.scale_channels(
            [dy, x], [scale, by_maps], by_all, axis, native=native
        )
    else:
        dx = ops.scale_channels([dy], [scale], by_all, axis, native=native)
    return [dx, *(by[name] for name in of.names)]


def derivatives(
    run: Callable[..., Any], given: Sequence[tf.Tensor], upstream: Any
) -> Sequence[tf.Tensor]:
    """Gradients by ops that TensorFlow can differentiate again."""
    with tf.GradientTape() as tape:
        tape.watch(given)
        result = run(*given)
    gradients: Sequence[tf.Tensor] = tape.gradient(
        result, given, upstream, unconnected_gradients="zero"
    )
    return gradients


def _in_tensorflow(
    terms: Sequence[Term], activation: str, axis: int
) -> tf.Tensor:
    """`combined` by ops that have gradients of any order."""
    parts = []
    for term in terms:
        of, x = term.statistics, term.maps
        if of is None:
            parts.append(x)
            continue
        if of.learns and of.exchange is None:
            moments = ops.channel_moments(x, axis, native=False)
            of = dataclasses.replace(of, moments=moments)
            term = dataclasses.replace(term, statistics=of)  # noqa: PLW2901
        scale, offset = term.affine(native=False)
        parts.append(
            ops.scale_channels([x], [scale], offset, axis, native=False)
        )
    return ops.ACTIVATIONS[activation].value(tf.add_n(parts))
