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
from tf_convpar.placement import apart
from tf_convpar.placement import broadcast
from tf_convpar.placement import copies_of
from tf_convpar.placement import on_device
from tf_convpar.placement import parts_of_samples
from tf_convpar.sharding._combined import Exchange
from tf_convpar.sharding._combined import Statistics
from tf_convpar.sharding._combined import Term
from tf_convpar.sharding._combined import merged_moments
from tf_convpar.sharding._combined import moments_of_all
from tf_convpar.sharding._combined import opened
from tf_convpar.sharding._later import made_on
from tf_convpar.sharding._later import normalized_shards
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import sent
from tf_convpar.sharding.rules.normalization import MOVING
from tf_convpar.sharding.rules.normalization import moved
from tf_convpar.sharding.rules.normalization import moved_on
from tf_convpar.sharding.rules.normalization import normalized
from tf_convpar.sharding.rules.normalization import own_term
from tf_convpar.sharding.rules.normalization import widened


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
        lies: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """The tensors that are sent: the input, weights, and moments.

        The input is sent only if it lies elsewhere.
        """
        found = [sent(layer, shapes[0], lies[0], layout, before, layout)]
        learns = training and layer.trainable
        names = _names(layer, learns)
        channels = shapes[0][layer.axis]
        devices, owner = layout.devices, layout.owner
        if names:
            rows = (len(names), channels)
            width = tf.as_dtype(layer.variable_dtype).size
            # All devices know the gradients by the weights: none returns.
            found.append(Move(rows, None, devices, owner, width, False))
            if learns and owner not in devices:
                found.append(Move(rows, devices[:1], None, owner, width, False))
        if learns:
            # Moments have the dtype of `widened`, whatever the wire dtype. How
            # many samples there are is told once in a step, and not counted.
            wide = max(tf.as_dtype(layer.compute_dtype).size, 4)
            each = dataclasses.replace(layout, shares=(1,) * len(devices))
            rows = (len(devices), 2 * channels)
            returns = before or bool(names)
            found.append(Move(rows, each, devices, owner, wide, returns))
            if owner not in devices:
                rows = (2, channels)
                found.append(Move(rows, devices[:1], None, owner, wide, False))
        return found

    def needed(
        self, layer: Any, layout: SampleLayout, training: bool
    ) -> list[Needed]:
        """Gamma and beta, as far as there are, in training."""
        names = _names(layer, True) if training and layer.trainable else []
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
        x = apart(x, layout)
        axis = layer.axis % x.ndim
        learns = bool(kwargs.get("training") and layer.trainable)
        names = _names(layer, learns)
        if not learns:
            weights = _weights(layer, names, layout)
            return _by_moving(layer, axis, x, names, weights)
        terms, moments = self._terms(layer, axis, x, names)
        _learn(layer, layout, moments)
        return normalized_shards(x, terms, axis, layer.compute_dtype)

    def on_one(
        self,
        layer: Any,
        x: tf.Tensor,
        weights: Mapping[str, tf.Tensor],
        device: str,
    ) -> Sequence[tf.Tensor]:
        """What one device computes in training, by its own moments alone."""
        axis = layer.axis % x.ndim
        term = own_term(layer, x, axis, weights, device)
        before = [weights[name] for name in MOVING]
        after = moved_on(device, layer, before, term.statistics)
        y = made_on(device, [term], "linear", axis, layer.compute_dtype)
        return [y, *after]

    def _terms(
        self, layer: Any, axis: int, x: ShardedTensor, names: Sequence[str]
    ) -> tuple[list[Term], tf.Tensor]:
        """The samples with their statistics, on each device.

        And the moments of all samples, on the device that `_keeper` says.
        """
        return _of_all(layer, axis, x, names)


class MomentsOfOwn(MomentsOfAll):
    """Each device normalizes its samples by their own moments.

    Nobody waits for any other. That is what replicas of a model do, and it is
    another function than normalizing all samples together. Moving statistics
    are those of all samples: their moments are sent to the chief.
    """

    def moves(
        self,
        layer: Any,
        layout: SampleLayout,
        shapes: Sequence[tuple[int, ...]],
        lies: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """The tensors that are sent: the input, weights, and moments once."""
        if not (training and layer.trainable):
            return super().moves(layer, layout, shapes, lies, before, training)
        found = [sent(layer, shapes[0], lies[0], layout, before, layout)]
        names = _names(layer, True)
        channels = shapes[0][layer.axis]
        devices, owner = layout.devices, layout.owner
        if names:
            rows = (len(names), channels)
            width = tf.as_dtype(layer.variable_dtype).size
            found.append(Move(rows, None, devices, owner, width, True))
        wide = max(tf.as_dtype(layer.compute_dtype).size, 4)
        each = dataclasses.replace(layout, shares=(1,) * len(devices))
        keeper = devices[_keeper(layout)]
        rows = (len(devices), 2 * channels)
        found.append(Move(rows, each, (keeper,), owner, wide, False))
        if keeper != owner:
            rows = (2, channels)
            found.append(Move(rows, (keeper,), None, owner, wide, False))
        return found

    def _terms(
        self, layer: Any, axis: int, x: ShardedTensor, names: Sequence[str]
    ) -> tuple[list[Term], tf.Tensor]:
        layout = x.layout
        weights = [
            copies_of(getattr(layer, name), layout.devices, layout.owner)
            for name in names
        ]
        terms, rows = [], []
        for number, device in enumerate(layout.devices):
            own = {n: c[number] for n, c in zip(names, weights, strict=True)}
            term = own_term(layer, x.shards[number], axis, own, device)
            terms.append(term)
            of: Any = term.statistics
            row = on_device(_stacked, device)(of.mean, of.variance)
            rows.append(row)
        keeper = _keeper(layout)
        fractions = parts_of_samples(x)[keeper].fractions
        device = layout.devices[keeper]
        moments = on_device(merged_moments, device)(
            tf.cast(fractions, rows[0].dtype), *rows
        )
        return terms, moments


def _stacked(*rows: tf.Tensor) -> tf.Tensor:
    return tf.stack(rows)


def _keeper(layout: SampleLayout) -> int:
    """Number of the device that keeps what all know: the chief's, if it can."""
    owner, devices = layout.owner, layout.devices
    return devices.index(owner) if owner in devices else 0


def _names(layer: Any, learns: bool) -> list[str]:
    """Names of the weights that devices need to normalize samples."""
    names = [n for n in ("gamma", "beta") if getattr(layer, n) is not None]
    return names if learns else [*names, "moving_mean", "moving_variance"]


def _weights(
    layer: Any, names: Sequence[str], layout: SampleLayout
) -> list[tf.Tensor]:
    """The weights on each device, a row for each name.

    They are stored on the chief, and small.
    """
    if not names:
        return [tf.zeros([0, 1])] * len(layout.devices)
    values = [tf.convert_to_tensor(stored(getattr(layer, n))) for n in names]
    rows = on_device(lambda *v: tf.stack(v), layout.owner)(*values)
    return broadcast(rows, layout.devices, layout.owner)


def _of_all(
    layer: Any,
    axis: int,
    x: ShardedTensor,
    names: Sequence[str],
) -> tuple[list[Term], tf.Tensor]:
    """As `MomentsOfAll._terms`: each device is sent what the others have."""
    layout = x.layout
    devices = layout.devices
    weights = [
        copies_of(getattr(layer, name), devices, layout.owner) for name in names
    ]
    # All know the gradients by the weights, so that no message has them.
    keeper = _keeper(layout)
    exchange = Exchange()
    found = []
    for number, device in enumerate(devices):

        def run(
            x: tf.Tensor,
            *weights: tf.Tensor,
            number: int = number,
            native: bool | None = ops.native_on("ScaleChannels", device),
        ) -> list[tf.Tensor]:
            x = widened(x)
            own = [tf.cast(weight, x.dtype) for weight in weights]
            return opened(
                *(x, own, names, layer.epsilon, exchange),
                *(number, number == keeper, axis, native),
            )

        own = [copies[number] for copies in weights]
        found.append(on_device(run, device)(x.shards[number], *own))
    rows = [
        broadcast(moments, devices, device)
        for device, (_, moments, *_) in zip(devices, found, strict=True)
    ]
    parts = parts_of_samples(x)
    terms = []
    for number, device in enumerate(devices):
        maps, _, *own = found[number]
        part = parts[number]
        exchange.one_by.append(part.one_by)

        def combine(*rows: tf.Tensor, part: Any = part) -> tf.Tensor:
            fractions = tf.cast(part.fractions, rows[0].dtype)
            return moments_of_all(rows, fractions, exchange)

        moments = on_device(combine, device)(*(row[number] for row in rows))
        exchange.moments.append(moments)
        mean, variance = on_device(tf.unstack, device)(moments)
        statistics = Statistics(
            mean, variance, layer.epsilon, True, tuple(names), exchange
        )
        terms.append(Term(maps, tuple(own), statistics))
    return terms, exchange.moments[keeper]


def _by_moving(
    layer: Any,
    axis: int,
    x: ShardedTensor,
    names: Sequence[str],
    weights: Sequence[tf.Tensor],
) -> ShardedTensor:
    """Normalizes samples on each device by moving statistics."""

    def run(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        given = dict(zip(names, tf.unstack(rows), strict=True))
        mean, variance = (given.pop(name) for name in MOVING)
        return normalized(layer, widened(x), axis, given, mean, variance)

    return x.with_shards(
        [
            on_device(run, device)(*own)
            for device, *own in zip(
                x.layout.devices, x.shards, weights, strict=True
            )
        ]
    )


def _learn(layer: Any, layout: SampleLayout, moments: tf.Tensor) -> None:
    """Updates the moving statistics, on the chief."""

    def run(
        rows: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> list[tf.Tensor]:
        return moved(layer, [mean, variance], tf.unstack(rows))

    moving = [layer.moving_mean, layer.moving_variance]
    before = [tf.convert_to_tensor(stored(variable)) for variable in moving]
    after = on_device(run, layout.owner)(moments, *before)
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
