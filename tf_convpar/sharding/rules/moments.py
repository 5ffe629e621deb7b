"""Batch normalization of samples on several devices, by moments of all."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import stored
from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import apart
from tf_convpar.placement import broadcast
from tf_convpar.placement import everywhere
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import sent
from tf_convpar.sharding.rules.normalization import moved
from tf_convpar.sharding.rules.normalization import native_on
from tf_convpar.sharding.rules.normalization import normalized
from tf_convpar.sharding.rules.normalization import normalized_by
from tf_convpar.sharding.rules.normalization import numbers_of_each
from tf_convpar.sharding.rules.normalization import on_shard
from tf_convpar.sharding.rules.normalization import widened
from tf_convpar.sharding.rules.normalization import with_moments


class MomentsOfAll(SampleRule):
    """Each device normalizes its samples by the moments of all samples.

    It sends the others the mean and the variance of its own samples, and the
    number of values that these are of. That takes one hop, and one back for
    the gradients. The moments are combined as in Chan, Golub and LeVeque,
    "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances"
    (1979), which keeps the digits that sums of squares lose.
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
            stored = tf.as_dtype(layer.variable_dtype).size
            found.append(Move(rows, None, devices, owner, stored, learns))
        if learns:
            # Moments have the dtype of `widened`, whatever the wire dtype.
            wide = max(tf.as_dtype(layer.compute_dtype).size, 4)
            each = dataclasses.replace(layout, shares=(1,) * len(devices))
            rows = (len(devices), 2 * channels + 1)
            found.append(Move(rows, each, devices, owner, wide, before))
            if owner not in devices:
                rows = (2, channels)
                found.append(Move(rows, devices[:1], None, owner, wide, False))
        return found

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
        weights = _weights(layer, names, layout)
        if not learns:
            return _with(layer, axis, x, names, weights)
        x, moments = _moments(x, axis)
        result = _with(layer, axis, x, names, weights, moments)
        _learn(layer, layout, moments)
        return result

    def on_one(
        self,
        layer: Any,
        x: tf.Tensor,
        weights: Mapping[str, tf.Tensor],
        device: str,
    ) -> Sequence[tf.Tensor]:
        """What one device computes in training, by its own moments alone."""
        learns, native = bool(layer.trainable), native_on(device)
        return on_shard(layer, x, layer.axis % x.ndim, weights, learns, native)


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


def _moments(
    x: ShardedTensor, axis: int
) -> tuple[ShardedTensor, list[tf.Tensor]]:
    """The widened samples, and the moments of all samples on each device."""
    layout = x.layout
    counts = x.counts or [1] * len(x.shards)
    own = []
    for shard, count, device in zip(
        x.shards, counts, layout.devices, strict=True
    ):
        run = functools.partial(_own, axis=axis, native=native_on(device))
        own.append(on_device(run, device)(shard, tf.convert_to_tensor(count)))
    wide, found = ([each[i] for each in own] for i in range(2))
    rows = everywhere(
        ShardedTensor(found, layout), layout.devices, layout.owner
    )
    by_device = dict(zip(layout.devices, rows, strict=True))
    combined = {
        device: on_device(_combined, device)(rows)
        for device, rows in by_device.items()
    }
    moments = [combined[device] for device in layout.devices]
    return x.with_shards(wide), moments


def _own(
    x: tf.Tensor, samples: tf.Tensor, axis: int, native: bool | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The widened samples, and a row of means, variances and their number.

    That number is 0 of a sample that is made up.
    """
    wide, moments = with_moments(widened(x), axis, native)
    count = tf.cast(numbers_of_each(wide, axis), wide.dtype)
    count *= tf.cast(samples > 0, wide.dtype)
    return wide, tf.concat([tf.reshape(moments, [-1]), count[None]], 0)[None]


def _combined(rows: tf.Tensor) -> tf.Tensor:
    """Mean and variance of all samples, from a row for each part of them."""
    counts = rows[:, -1:]
    means, variances = tf.split(rows[:, :-1], 2, axis=1)
    weights = counts / tf.reduce_sum(counts)
    mean = tf.reduce_sum(weights * means, 0)
    within = tf.reduce_sum(weights * variances, 0)
    between = tf.reduce_sum(weights * tf.square(means - mean), 0)
    return tf.stack([mean, within + between])


def _with(
    layer: Any,
    axis: int,
    x: ShardedTensor,
    names: Sequence[str],
    weights: Sequence[tf.Tensor],
    moments: Sequence[tf.Tensor] | None = None,
) -> ShardedTensor:
    """Normalizes samples on each device, by `moments` or moving statistics."""

    def run(
        x: tf.Tensor,
        rows: tf.Tensor,
        *found: tf.Tensor,
        native: bool | None = None,
    ) -> tf.Tensor:
        if found:
            own = tf.unstack(tf.cast(rows, x.dtype)) if names else []
            return normalized_by(layer, axis, x, found[0], names, own, native)
        given = dict(zip(names, tf.unstack(rows), strict=True))
        mean = given.pop("moving_mean")
        variance = given.pop("moving_variance")
        return normalized(layer, widened(x), axis, given, mean, variance)

    operands = [x.shards, weights, *([] if moments is None else [moments])]
    return x.with_shards(
        [
            on_device(functools.partial(run, native=native_on(device)), device)(
                *own
            )
            for device, *own in zip(x.layout.devices, *operands, strict=True)
        ]
    )


def _learn(
    layer: Any, layout: SampleLayout, moments: Sequence[tf.Tensor]
) -> None:
    """Updates the moving statistics, on the chief."""
    device = layout.owner if layout.owner in layout.devices else None
    index = layout.devices.index(device) if device else 0

    def run(
        rows: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> list[tf.Tensor]:
        return moved(layer, [mean, variance], tf.unstack(rows))

    moving = [layer.moving_mean, layer.moving_variance]
    before = [tf.convert_to_tensor(stored(variable)) for variable in moving]
    after = on_device(run, layout.owner)(moments[index], *before)
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
