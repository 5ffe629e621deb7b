"""Sums of feature maps, some of them batch-normalized, with their gradients.

A normalization is a factor and a summand of each channel, once its statistics
are known. A sum of one or two maps and an activation of it are then one pass.

Where the statistics are those of maps on several devices, what comes back
through `combined` is no derivative, but what `with_moments` makes the
derivatives of (`_moments`).
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import should_record_backprop

# Terms that are added in one pass.
MOST_TERMS = 2


class Exchange:
    """State that the devices of one normalization share.

    Attributes:
        activations: The activations of the results that were made of it.
        pending: The activation through which gradients have not passed yet
            where they come back to `with_moments`.
        exact: Whether true derivatives come back, as they must once a tape has
            recorded them.
        moments: For each device, by its number, the moments of all maps.
        one_of_n: For each device 1 / n, of n samples on all devices; 0 where
            its own do not count.
    """

    def __init__(self) -> None:
        self.activations: list[str] = []
        self.pending = "linear"
        self.exact = False
        self.moments: list[tf.Tensor] = []
        self.one_of_n: list[tf.Tensor] = []
        # In which derivatives were computed first.
        self._graph: weakref.ref[Any] | None = None

    def is_exact(self) -> bool:
        """Whether true derivatives come back, as a gradient asks.

        They must as well if a function is differentiated that has derivatives
        in it, which no tape tells. That is done in another graph.
        """
        graph = tf.compat.v1.get_default_graph()
        if self._graph is None:
            self._graph = weakref.ref(graph)
        self.exact = self.exact or self._graph() is not graph
        return self.exact


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Means and variances by which feature maps are normalized.

    Attributes:
        moments: Their means and variances, `(2, channels)`.
        epsilon: Summand of variances.
        learns: Whether both were computed of the maps themselves.
        names: Which weights there are, of `gamma` and `beta`.
        exchange: State that devices share, if the statistics are of maps on
            other devices as well.
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
        statistics = self.statistics
        if statistics is None:
            ones = tf.ones(self.maps.shape[-1], self.maps.dtype)
            return ones, tf.zeros_like(ones)
        weights = dict(zip(statistics.names, self.weights, strict=True))
        return ops.affine(
            *(statistics.moments, weights.get("gamma"), weights.get("beta")),
            statistics.epsilon,
            native=native,
        )

    @property
    def exchange(self) -> Exchange | None:
        """State that devices share; None if there is none."""
        return None if self.statistics is None else self.statistics.exchange

    def tensors(self) -> list[tf.Tensor]:
        """The tensors with respect to which gradients are computed."""
        statistics = self.statistics
        shared = statistics is not None and statistics.exchange is not None
        moments = [statistics.moments] if statistics and shared else []
        return [self.maps, *self.weights, *moments]

    def with_tensors(self, tensors: Sequence[tf.Tensor]) -> Term:
        """This term with other tensors, in the order of `tensors`."""
        count = 1 + len(self.weights)
        maps, *weights = tensors[:count]
        statistics = self.statistics
        if statistics is not None and len(tensors) > count:
            (moments,) = tensors[count:]
            statistics = dataclasses.replace(statistics, moments=moments)
        return Term(maps, tuple(weights), statistics)


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
    tensors = [tensor for term in terms for tensor in term.tensors()]
    for term in terms:
        if (
            term.exchange is not None
            and activation not in term.exchange.activations
        ):
            term.exchange.activations.append(activation)

    @tf.custom_gradient
    def run(*values: tf.Tensor) -> Any:
        argument_terms = regrouped(terms, values)
        y = _scaled(argument_terms, activation, axis, native)

        def gradient(dy: tf.Tensor) -> Sequence[tf.Tensor]:
            if _must_be_exact(argument_terms, [dy, *values]):
                # Devices exchange below what are no derivatives.
                return derivatives(
                    lambda *g: _differentiable(
                        regrouped(terms, g), activation, axis
                    ),
                    values,
                    dy,
                )
            dy, pending = _through_activation(
                *(dy, y, argument_terms, activation, axis, native)
            )
            return [
                by_tensor
                for term in argument_terms
                for by_tensor in _term_gradients(
                    term, dy, pending, axis, native
                )
            ]

        return y, gradient

    y: tf.Tensor = run(*tensors)
    return y


def regrouped(
    terms: Sequence[Term], tensors: Sequence[tf.Tensor]
) -> list[Term]:
    """The terms with other tensors, in the order of their `tensors`."""
    remaining, regrouped_terms = list(tensors), []
    for term in terms:
        count = len(term.tensors())
        regrouped_terms.append(term.with_tensors(remaining[:count]))
        del remaining[:count]
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


def _must_be_exact(
    terms: Sequence[Term], recorded: Sequence[tf.Tensor]
) -> bool:
    """Whether true derivatives are asked for; tells those that exchange."""
    exchanges = [t.exchange for t in terms if t.exchange is not None]
    exact = should_record_backprop(recorded)
    # What has recorded derivatives adds others to them.
    exact = exact or any(exchange.is_exact() for exchange in exchanges)
    for exchange in exchanges:
        exchange.exact = exact
    return exact


def _through_activation(
    dy: tf.Tensor,
    y: tf.Tensor,
    terms: Sequence[Term],
    activation: str,
    axis: int,
    native: bool | None,
) -> tuple[tf.Tensor, str]:
    """Gradients of the sum, and the activation that they have yet to pass.

    A single normalization passes it as it sums up its gradients; the activation
    of two terms, or one of several of a normalization, is passed here.
    """
    if len(terms) > 1 and activation == "relu":
        return tf.raw_ops.ReluGrad(gradients=dy, features=y), "linear"
    if any(t.exchange and len(t.exchange.activations) > 1 for t in terms):
        before = _scaled(terms, "linear", axis, native)
        return ops.passed_back(dy, before, activation), "linear"
    return dy, activation


def _term_gradients(
    term: Term, dy: tf.Tensor, pending: str, axis: int, native: bool | None
) -> list[tf.Tensor]:
    """Gradients by the `tensors` of a term.

    Of a term whose devices exchange, what `with_moments` needs of them.
    """
    statistics = term.statistics
    if statistics is None:
        return [dy]
    sums = _sums(term, dy, pending, axis, native)
    if statistics.exchange is not None:
        statistics.exchange.pending = pending
        return [dy, *map(tf.zeros_like, term.weights), sums]
    one_of_n = tf.math.divide_no_nan(
        tf.cast(term.maps.shape[axis], dy.dtype),
        tf.cast(tf.size(term.maps, tf.int64), dy.dtype),
    )
    dx, *by_weights = gradients_of(
        term, dy, sums, one_of_n, pending, axis, native
    )
    if statistics.learns:
        ops.leave_balanced(dx)
    return [dx, *by_weights]


def _sums(
    term: Term, dy: tf.Tensor, activation: str, axis: int, native: bool | None
) -> tf.Tensor:
    """Sums over each channel of g = dy f'(..), and of g (x - mean)."""
    statistics: Any = term.statistics
    mean = statistics.moments[0]
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
        term: The maps that were normalized.
        dy: Gradients of the result.
        sums: As `_sums` has them, of all maps that were normalized together.
        one_of_n: 1 / n.
        activation: f.
        axis: The channel axis.
        native: As for `ops.scale_channels`.
    """
    x = term.maps
    statistics: Any = term.statistics
    scale, offset = term.affine(native)
    weights = dict(zip(statistics.names, term.weights, strict=True))
    by_maps, by_all, by_gamma = ops.batch_normalization_gradient(
        *(
            sums,
            statistics.moments,
            weights.get("gamma"),
            one_of_n,
            statistics.epsilon,
        ),
        give_way=statistics.exchange is not None,
        native=native,
    )
    weight_gradients = {"gamma": by_gamma, "beta": sums[0]}
    if not statistics.learns:
        by_maps = by_all = tf.zeros_like(scale)
    if activation != "linear":
        dx = ops.activated_gradient(
            dy, x, scale, offset, by_maps, by_all, activation, native=native
        )
    elif statistics.learns:
        dx = ops.scale_channels(
            [dy, x], [scale, by_maps], by_all, axis, native=native
        )
    else:
        dx = ops.scale_channels([dy], [scale], by_all, axis, native=native)
    return [dx, *(weight_gradients[name] for name in statistics.names)]


def derivatives(
    run: Callable[..., Any], tensors: Sequence[tf.Tensor], upstream: Any
) -> Sequence[tf.Tensor]:
    """Gradients by ops that TensorFlow can differentiate again."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        result = run(*tensors)
    gradients: Sequence[tf.Tensor] = tape.gradient(
        result, tensors, upstream, unconnected_gradients="zero"
    )
    return gradients


def _differentiable(
    terms: Sequence[Term], activation: str, axis: int
) -> tf.Tensor:
    """`combined` by ops that have gradients of any order."""
    parts = []
    for term in terms:
        statistics, x = term.statistics, term.maps
        if statistics is None:
            parts.append(x)
            continue
        if statistics.learns and statistics.exchange is None:
            moments = ops.channel_moments(x, axis, native=False)
            statistics = dataclasses.replace(statistics, moments=moments)
            term = dataclasses.replace(term, statistics=statistics)  # noqa: PLW2901
        scale, offset = term.affine(native=False)
        parts.append(
            ops.scale_channels([x], [scale], offset, axis, native=False)
        )
    return ops.ACTIVATIONS[activation].value(tf.add_n(parts))
