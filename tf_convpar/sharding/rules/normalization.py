"""Batch normalization whose statistics lie beside the shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.keras import stored
from tf_convpar.ops import channel_moments
from tf_convpar.ops import channel_sums
from tf_convpar.ops import scale_channels
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape

_WEIGHTS = ("moving_mean", "moving_variance", "gamma", "beta")


class BatchNormalization(Rule):
    """Each device normalizes its channels (Ioffe and Szegedy, 2015)."""

    layers = (keras.layers.BatchNormalization,)

    def output(
        self, layer: Any, inputs: Sequence[Layout], shape: Shape
    ) -> Layout | None:
        """The layout of the input, if the layer's own axis is the one cut."""
        (layout,) = inputs
        rank = len(shape)
        fits = layer.axis % rank == layout.axis % rank
        plain = not getattr(layer, "renorm", False) and not layer.synchronized
        return layout if fits and plain and layout.blocks == 1 else None

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """The layout of all four weights, with a number for each channel."""
        layout = dataclasses.replace(inputs[0], axis=-1, wire=None)
        return {
            name: layout
            for name in _WEIGHTS
            if getattr(layer, name, None) is not None
        }

    def call(
        self,
        layer: Any,
        inputs: Sequence[ShardedTensor],
        training: Any = None,
        **kwargs: Any,
    ) -> ShardedTensor:
        """Normalizes by the batch in training, else by moving statistics."""
        (x,) = inputs
        learns = bool(training and layer.trainable)
        names = [n for n in _WEIGHTS if getattr(layer, n, None) is not None]
        weights = {n: stored(getattr(layer, n)) for n in names}
        values = {n: v.sharded_value().shards for n, v in weights.items()}
        axis = x.layout.axis + x.ndim
        shards = []
        for i, device in enumerate(x.layout.devices):

            def run(
                shard: tf.Tensor,
                *operands: tf.Tensor,
                native: bool | None = native_on(device),
            ) -> Any:
                given = dict(zip(names, operands, strict=True))
                return on_shard(layer, shard, axis, given, learns, native)

            result, mean, variance = on_device(run, device)(
                x.shards[i], *(values[name][i] for name in names)
            )
            shards.append(result)
            if learns:
                with tf.device(device):
                    weights["moving_mean"].shards[i].assign(mean)
                    weights["moving_variance"].shards[i].assign(variance)
        return ShardedTensor(shards, x.layout)


def on_shard(
    layer: Any,
    x: tf.Tensor,
    axis: int,
    given: Mapping[str, tf.Tensor],
    learns: bool,
    native: bool | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalizes one shard, on the current device.

    Args:
        layer: The Keras layer.
        x: The shard.
        axis: The channel axis.
        given: Values of the layer's weights for this shard, by their names.
        learns: Whether to use the moments of the shard, and to update the
            moving statistics.
        native: Whether the compiled ops run, as for `ops.scale_channels`.

    Returns:
        The normalized shard, and its moving mean and variance.
    """
    x = widened(x)
    mean, variance = given["moving_mean"], given["moving_variance"]
    if not learns:
        return normalized(layer, x, axis, given, mean, variance), mean, variance
    names = [name for name in ("gamma", "beta") if name in given]
    rows = [tf.cast(given[name], x.dtype) for name in names]
    x, moments = with_moments(x, axis, native)
    y = normalized_by(layer, axis, x, moments, names, rows, native)
    return (y, *moved(layer, [mean, variance], tf.unstack(moments)))


def native_on(device: str) -> bool | None:
    """`native` of the ops of a normalization on this device."""
    return ops.native_on("ScaleChannels", device)


def widened(x: tf.Tensor) -> tf.Tensor:
    """Maps in float32 or wider, as in Keras: narrower floats overflow."""
    return tf.cast(x, keras.backend.result_type(x.dtype.name, "float32"))


def with_moments(
    x: tf.Tensor, axis: int, native: bool | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Widened maps, and two rows: their means and variances.

    A caller that normalizes `x` by these moments must use the `x` that is
    returned. The gradients of both are then added in the same pass over the
    maps that computes the moments' gradient.
    """

    @tf.custom_gradient
    def found(x: tf.Tensor) -> Any:
        moments = channel_moments(x, axis, native=native)

        def gradient(dx: tf.Tensor, by_moments: tf.Tensor) -> tf.Tensor:
            # d mean / dx = 1 / n, d variance / dx = 2 (x - mean) / n
            mean, _ = tf.unstack(moments)
            n = tf.cast(tf.maximum(numbers_of_each(x, axis), 1), x.dtype)
            by_mean, by_variance = tf.unstack(by_moments / n)
            scale = 2 * by_variance
            return scale_channels(
                [dx, x],
                [tf.ones_like(scale), scale],
                by_mean - scale * mean,
                axis,
                native=native,
            )

        return (tf.identity(x), moments), gradient

    return found(x)


def numbers_of_each(x: tf.Tensor, axis: int) -> tf.Tensor:
    """The amount of numbers in each channel."""
    return tf.size(x) // x.shape[axis]


def normalized_by(
    layer: Any,
    axis: int,
    x: tf.Tensor,
    moments: tf.Tensor,
    names: Sequence[str],
    rows: Sequence[tf.Tensor],
    native: bool | None,
) -> tf.Tensor:
    """Normalizes widened maps by given moments.

    The gradient is written out: differentiated op by op, it would go over the
    feature maps three times as often.

    Args:
        layer: The Keras layer.
        axis: The channel axis.
        x: Feature maps that have been widened.
        moments: Two rows, the means and the variances.
        names: Names of the weights that the layer has of `gamma` and `beta`.
        rows: Values of these weights, in the dtype of `x`.
        native: Whether the compiled ops run, as for `ops.scale_channels`.
    """

    @tf.custom_gradient
    def found(x: tf.Tensor, moments: tf.Tensor, *rows: tf.Tensor) -> Any:
        mean, variance = tf.unstack(moments)
        given = dict(zip(names, rows, strict=True))
        inverse = tf.math.rsqrt(variance + layer.epsilon)
        slope = inverse * given["gamma"] if "gamma" in given else inverse
        nothing = tf.zeros_like(slope)

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # y = gamma x^ + beta, x^ = (x - mean) / deviation
            dy = tf.cast(dy, x.dtype)
            sums = channel_sums(dy, x, mean, axis, native=native)
            beta, centred = tf.unstack(sums)
            by = {"beta": beta, "gamma": centred * inverse}
            by_moments = [
                -slope * by["beta"],
                -0.5 * slope * inverse * by["gamma"],
            ]
            dx = scale_channels([dy], [slope], nothing, axis, native=native)
            return (dx, tf.stack(by_moments), *(by[name] for name in names))

        offset = given.get("beta", nothing) - mean * slope
        y = scale_channels([x], [slope], offset, axis, native=native)
        return tf.cast(y, layer.compute_dtype), gradient

    return found(x, moments, *rows)


def normalized(
    layer: Any,
    x: tf.Tensor,
    axis: int,
    given: Mapping[str, tf.Tensor],
    mean: tf.Tensor,
    variance: tf.Tensor,
) -> tf.Tensor:
    """Normalizes widened maps as Keras does, by given statistics."""
    given = {name: tf.cast(value, x.dtype) for name, value in given.items()}
    y = keras.ops.batch_normalization(
        x,
        tf.cast(mean, x.dtype),
        tf.cast(variance, x.dtype),
        axis,
        offset=given.get("beta"),
        scale=given.get("gamma"),
        epsilon=layer.epsilon,
    )
    return tf.cast(y, layer.compute_dtype)


def moved(
    layer: Any, moving: Sequence[tf.Tensor], moments: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """New moving statistics, from old ones and the moments of a batch."""
    keep, new = layer.momentum, 1.0 - layer.momentum
    return [
        tf.cast(
            tf.stop_gradient(
                tf.cast(before, moment.dtype) * keep + moment * new
            ),
            before.dtype,
        )
        for before, moment in zip(moving, moments, strict=True)
    ]
