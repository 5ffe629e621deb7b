"""Batch normalization of samples on several devices, by moments of all."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

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
from tf_convpar.sharding.rules.normalization import normalized
from tf_convpar.sharding.rules.normalization import widened


class MomentsOfAll(SampleRule):
    """Each device normalizes its samples by the moments of all samples.

    It sends the others the mean and the variance of its own, and how many
    numbers they are of: one hop, and one back for their gradients. They are
    combined as in Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
    Algorithm for Computing Sample Variances" (1979), which keeps the digits
    that sums of squares lose.
    """

    layers = (keras.layers.BatchNormalization,)

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Unless samples are what is normalized."""
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
        """The input, if it lies elsewhere; rows of weights; and moments."""
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
            # As `widened`, whatever the wire.
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
        """By moments of the batch in training, else by moving statistics."""
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
        moments = _moments(x, axis)
        result = _with(layer, axis, x, names, weights, moments)
        _learn(layer, layout, moments)
        return result


def _names(layer: Any, learns: bool) -> list[str]:
    """Of the weights that devices need."""
    names = [n for n in ("gamma", "beta") if getattr(layer, n) is not None]
    return names if learns else [*names, "moving_mean", "moving_variance"]


def _weights(
    layer: Any, names: Sequence[str], layout: SampleLayout
) -> list[tf.Tensor]:
    """A row for each name, on each device: they are small, and the chief's."""
    if not names:
        return [tf.zeros([0, 1])] * len(layout.devices)
    values = [tf.convert_to_tensor(getattr(layer, n)._value) for n in names]
    rows = on_device(lambda *v: tf.stack(v), layout.owner)(*values)
    return broadcast(rows, layout.devices, layout.owner)


def _moments(x: ShardedTensor, axis: int) -> list[tf.Tensor]:
    """Two rows, mean and variance of all samples, on each device."""
    layout = x.layout
    own = [
        on_device(functools.partial(_own_moments, axis=axis), device)(shard)
        for shard, device in zip(x.shards, layout.devices, strict=True)
    ]
    rows = everywhere(ShardedTensor(own, layout), layout.devices, layout.owner)
    by_device = dict(zip(layout.devices, rows, strict=True))
    found = {
        device: on_device(_combined, device)(rows)
        for device, rows in by_device.items()
    }
    return [found[device] for device in layout.devices]


def _own_moments(x: tf.Tensor, axis: int) -> tf.Tensor:
    """A row of means, variances, and of how many numbers they are.

    Its gradient is written out, as is that of `_normalize`: differentiated op
    by op, both would go over the feature maps twice as often.
    """

    @tf.custom_gradient
    def found(x: tf.Tensor) -> Any:
        wide = widened(x)
        axes, along = _around(wide, axis)
        mean, variance = keras.ops.moments(wide, axes)
        sizes = tf.gather(tf.shape(wide), axes)
        count = tf.cast(tf.reduce_prod(sizes), wide.dtype)
        # A device without samples has none.
        mean, variance = (
            tf.where(count > 0, m, tf.zeros_like(m)) for m in (mean, variance)
        )

        def gradient(row: tf.Tensor) -> tf.Tensor:
            # d mean / dx = 1 / n, d variance / dx = 2 (x - mean) / n
            by_mean, by_variance = tf.unstack(
                tf.reshape(row[0, :-1] / tf.maximum(count, 1), [2, -1])
            )
            factor = 2 * by_variance
            dx = wide * along(factor) + along(by_mean - factor * mean)
            return tf.cast(dx, x.dtype)

        return tf.concat([mean, variance, count[None]], 0)[None], gradient

    return found(x)


def _normalize(
    layer: Any,
    axis: int,
    x: tf.Tensor,
    moments: tf.Tensor,
    names: Sequence[str],
    rows: tf.Tensor,
) -> tf.Tensor:
    """Samples, normalized by given moments, two rows."""

    @tf.custom_gradient
    def found(x: tf.Tensor, moments: tf.Tensor, rows: tf.Tensor) -> Any:
        wide = widened(x)
        mean, variance = tf.unstack(moments)
        given = dict(zip(names, tf.unstack(rows), strict=True))

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # y = scale x^ + offset, x^ = (x - mean) / deviation
            dy = tf.cast(dy, wide.dtype)
            axes, along = _around(wide, axis)
            inverse = tf.math.rsqrt(variance + layer.epsilon)
            normal = (wide - along(mean)) * along(inverse)
            by = {
                "gamma": tf.reduce_sum(dy * normal, axes),
                "beta": tf.reduce_sum(dy, axes),
            }
            slope = inverse
            if "gamma" in given:
                slope *= tf.cast(given["gamma"], slope.dtype)
            by_moments = [
                -slope * by["beta"],
                -0.5 * slope * inverse * by["gamma"],
            ]
            by_rows = [tf.cast(by[name], rows.dtype) for name in names]
            return (
                tf.cast(dy * along(slope), x.dtype),
                tf.stack(by_moments),
                tf.stack(by_rows) if names else tf.zeros_like(rows),
            )

        y = normalized(layer, wide, axis, given, mean, variance)
        return y, gradient

    return found(x, moments, rows)


def _around(
    x: tf.Tensor, axis: int
) -> tuple[list[int], Callable[[tf.Tensor], tf.Tensor]]:
    """All axes but one, and what lays a vector along that one."""
    axes = [a for a in range(x.shape.rank) if a != axis]
    shape = [-1 if a == axis else 1 for a in range(x.shape.rank)]
    return axes, lambda vector: tf.reshape(vector, shape)


def _combined(rows: tf.Tensor) -> tf.Tensor:
    """Mean and variance of all, of those of parts."""
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
    """Samples, normalized on each device."""

    def run(x: tf.Tensor, rows: tf.Tensor, *found: tf.Tensor) -> tf.Tensor:
        if found:
            return _normalize(layer, axis, x, found[0], names, rows)
        given = dict(zip(names, tf.unstack(rows), strict=True))
        mean = given.pop("moving_mean")
        variance = given.pop("moving_variance")
        return normalized(layer, widened(x), axis, given, mean, variance)

    operands = [x.shards, weights, *([] if moments is None else [moments])]
    return ShardedTensor(
        [
            on_device(run, device)(*own)
            for device, *own in zip(x.layout.devices, *operands, strict=True)
        ],
        x.layout,
    )


def _learn(
    layer: Any, layout: SampleLayout, moments: Sequence[tf.Tensor]
) -> None:
    """Moving statistics, on the chief."""
    device = layout.owner if layout.owner in layout.devices else None
    index = layout.devices.index(device) if device else 0

    def run(
        rows: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> list[tf.Tensor]:
        return moved(layer, [mean, variance], tf.unstack(rows))

    moving = [layer.moving_mean, layer.moving_variance]
    before = [tf.convert_to_tensor(variable._value) for variable in moving]
    after = on_device(run, layout.owner)(moments[index], *before)
    for variable, value in zip(moving, after, strict=True):
        variable.assign(value)
