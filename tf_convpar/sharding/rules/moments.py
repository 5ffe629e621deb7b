"""Batch normalization of samples on several devices, by moments of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import stored
from tf_convpar.placement import Move
from tf_convpar.placement import Needed
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import copies_of
from tf_convpar.placement import in_shards
from tf_convpar.placement import on_device
from tf_convpar.placement import parts_of_samples
from tf_convpar.placement import rows_of_all
from tf_convpar.sharding._lazy_shards import activated_on
from tf_convpar.sharding._lazy_shards import normalized_shards
from tf_convpar.sharding._moments import moments_of_all
from tf_convpar.sharding._moments import with_moments
from tf_convpar.sharding._normalized_sums import Exchange
from tf_convpar.sharding._normalized_sums import Statistics
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import sent
from tf_convpar.sharding.rules.normalization import MOVING
from tf_convpar.sharding.rules.normalization import moved_on
from tf_convpar.sharding.rules.normalization import moving_term
from tf_convpar.sharding.rules.normalization import own_term
from tf_convpar.sharding.rules.normalization import widened_on


class MomentsOfAll(SampleRule):
    """Each device normalizes its samples by the moments of all samples.

    It sends the others the mean and the variance of its own samples. That
    takes one hop, and one back for sums of the gradients. The moments are
    combined as in Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances" (1979), which keeps the digits
    that sums of squares lose.
    """

    layers = (keras.layers.BatchNormalization,)
    computes = True

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether the layer's axis is not that of samples, without renorm."""
        renorm = getattr(layer, "renorm", False)
        return not renorm and layer.axis % len(shapes[0]) != 0

    def moves(
        self,
        layer: Any,
        layout: SampleLayout,
        shapes: Sequence[tuple[int, ...]],
        input_places: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """The tensors that are sent: the input, weights, and moments.

        The input is sent only if it lies elsewhere.
        """
        learns = training and layer.trainable
        names, channels = _names(layer, learns), shapes[0][layer.axis]
        devices, owner = layout.devices, layout.owner
        weights = (len(names), channels)
        # Moments have the dtype of `widened`, whatever the wire dtype. How many
        # samples there are is told once in a step, and not counted.
        wide = max(tf.as_dtype(layer.compute_dtype).size, 4)
        each = dataclasses.replace(layout, shares=(1,) * len(devices))
        rows = (len(devices), 2 * channels)
        keeper = devices[_keeper(layout)]
        stored_as = tf.as_dtype(layer.variable_dtype).size
        returns = learns and self._weights_return
        moves = [
            sent(layer, shapes[0], input_places[0], layout, before, layout)
        ]
        if names:
            moves.append(
                Move(
                    *(weights, None, devices, owner, stored_as, returns),
                    packed=True,
                )
            )
        if learns:
            wanted = self._moments_go_to(layout)
            back = not returns and (before or bool(names))
            moves.append(Move(rows, each, wanted, owner, wide, back))
        if learns and keeper != owner:
            moves.append(
                Move((2, channels), (keeper,), None, owner, wide, False)
            )
            if names and not returns:
                moves.append(
                    Move(
                        *(weights, (keeper,), None, owner, stored_as, False),
                        packed=True,
                    )
                )
        return moves

    # Whether each device sends the chief gradients by gamma and beta. If all
    # know them, nobody does.
    _weights_return = False

    def _moments_go_to(self, layout: SampleLayout) -> tuple[str, ...]:
        return layout.devices

    def needed(
        self, layer: Any, layout: SampleLayout, training: bool
    ) -> list[Needed]:
        """Gamma and beta, and what else a call needs."""
        names = _names(layer, training and layer.trainable)
        return [
            Needed(getattr(layer, name), layout.devices, layout.owner, None)
            for name in names
        ]

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """Normalizes by the batch in training, else by moving statistics."""
        x, *_ = args
        if kwargs.get("mask") is not None:
            x = x.joined() if isinstance(x, ShardedTensor) else x
            return type(layer).call(layer, x, **kwargs)
        x = in_shards(x, layout)
        axis = layer.axis % x.ndim
        learns = bool(kwargs.get("training") and layer.trainable)
        names = _names(layer, learns)
        weights = [
            copies_of(getattr(layer, name), layout.devices, layout.owner)
            for name in names
        ]
        if not learns:
            moving_terms = [
                moving_term(
                    layer, shard, dict(zip(names, here, strict=True)), device
                )
                for device, shard, *here in zip(
                    layout.devices, x.shards, *weights, strict=True
                )
            ]
            return normalized_shards(x, moving_terms, axis, layer.compute_dtype)
        terms, moments = self._terms(layer, axis, x, names, weights)
        _learn(layer, layout, moments)
        return normalized_shards(x, terms, axis, layer.compute_dtype)

    def on_one(
        self,
        layer: Any,
        x: tf.Tensor,
        weights: Mapping[str, tf.Tensor],
        device: str,
    ) -> Sequence[tf.Tensor]:
        """Computes one device's part in training, by its own moments alone."""
        axis = layer.axis % x.ndim
        term = own_term(layer, x, axis, weights, device)
        before = [weights[name] for name in MOVING]
        statistics: Any = term.statistics
        after = moved_on(device, layer, before, statistics.moments)
        y = activated_on(device, [term], "linear", axis, layer.compute_dtype)
        return [y, *after]

    def _terms(
        self,
        layer: Any,
        axis: int,
        x: ShardedTensor,
        names: Sequence[str],
        weights: Sequence[Sequence[tf.Tensor]],
    ) -> tuple[list[Term], tf.Tensor]:
        """The samples with their statistics, on each device.

        And the moments of all samples, on the device that `_keeper` says.

        Args:
            layer: The Keras layer.
            axis: The channel axis.
            x: The samples.
            names: Names of gamma and beta, as far as there are.
            weights: The copies of each of them.
        """
        return _of_all(layer, axis, x, names, weights)


class MomentsOfOwn(MomentsOfAll):
    """Each device normalizes its samples by their own moments.

    Nobody waits for any other. That is what replicas of a model do, and it is
    another function than normalizing all samples together. Moving statistics
    are those of all samples: their moments are sent to the chief.
    """

    waits = False
    _weights_return = True

    def _moments_go_to(self, layout: SampleLayout) -> tuple[str, ...]:
        return (layout.devices[_keeper(layout)],)

    def _terms(
        self,
        layer: Any,
        axis: int,
        x: ShardedTensor,
        names: Sequence[str],
        weights: Sequence[Sequence[tf.Tensor]],
    ) -> tuple[list[Term], tf.Tensor]:
        terms, rows = [], []
        for number, device in enumerate(x.layout.devices):
            weights_here = {
                n: c[number] for n, c in zip(names, weights, strict=True)
            }
            term = own_term(layer, x.shards[number], axis, weights_here, device)
            statistics: Any = term.statistics
            terms.append(term)
            rows.append(statistics.moments)
        keeper = _keeper(x.layout)
        fractions = parts_of_samples(x)[keeper].fractions

        device = x.layout.devices[keeper]
        native = ops.native_on("MergedMoments", device)

        def merge(*rows: tf.Tensor) -> tf.Tensor:
            parts = tf.cast(fractions, rows[0].dtype)
            return ops.merged_moments(parts, rows, native=native)

        return terms, on_device(merge, device)(*rows)


def _keeper(layout: SampleLayout) -> int:
    """Number of the device whose copy of shared results counts.

    That is the chief's, if it has samples.
    """
    owner, devices = layout.owner, layout.devices
    return devices.index(owner) if owner in devices else 0


def _names(layer: Any, learns: bool) -> list[str]:
    """Names of the weights that devices need to normalize samples."""
    names = [n for n in ("gamma", "beta") if getattr(layer, n) is not None]
    return names if learns else [*names, "moving_mean", "moving_variance"]


def _of_all(
    layer: Any,
    axis: int,
    x: ShardedTensor,
    names: Sequence[str],
    weights: Sequence[Sequence[tf.Tensor]],
) -> tuple[list[Term], tf.Tensor]:
    """As `MomentsOfAll._terms`: each device is sent the others' moments."""
    layout = x.layout
    devices = layout.devices
    # All know the gradients by the weights, so that no message has them.
    keeper = _keeper(layout)
    exchange = Exchange()
    maps_with_moments = []
    for number, device in enumerate(devices):
        weights_here = [copies[number] for copies in weights]
        maps, *weights_here = widened_on(
            device, x.shards[number], *weights_here
        )
        maps_with_moments.append(
            with_moments(
                *(maps, weights_here, names, layer.epsilon, exchange),
                *(number, number == keeper, device, axis),
            )
        )
    rows = rows_of_all(
        [moments for _, moments, *_ in maps_with_moments], devices
    )
    parts = parts_of_samples(x)
    terms = []
    for number, device in enumerate(devices):
        maps, _, *weights_here = maps_with_moments[number]
        part = parts[number]
        exchange.one_of_n.append(part.one_of_n)

        def combine(
            *rows: tf.Tensor,
            part: Any = part,
            native: bool | None = ops.native_on("MergedMoments", device),
        ) -> tf.Tensor:
            fractions = tf.cast(part.fractions, rows[0].dtype)
            return moments_of_all(rows, fractions, exchange, native)

        moments = on_device(combine, device)(*rows[number])
        exchange.moments.append(moments)
        statistics = Statistics(
            moments, layer.epsilon, True, tuple(names), exchange
        )
        terms.append(Term(maps, tuple(weights_here), statistics))
    return terms, exchange.moments[keeper]


def _learn(layer: Any, layout: SampleLayout, moments: tf.Tensor) -> None:
    """Updates the moving statistics, on the chief."""
    moving = [layer.moving_mean, layer.moving_variance]
    before = [tf.convert_to_tensor(stored(variable)) for variable in moving]
    after = moved_on(layout.owner, layer, before, moments)
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
