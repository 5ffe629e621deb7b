"""Batch normalization, its statistics beside the shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

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
        """As the input, if that is cut along the axis that is normalized."""
        (layout,) = inputs
        rank = len(shape)
        fits = layer.axis % rank == layout.axis % rank
        plain = not getattr(layer, "renorm", False) and not layer.synchronized
        return layout if fits and plain and layout.blocks == 1 else None

    def place(
        self, layer: Any, inputs: Sequence[Layout]
    ) -> Mapping[str, Layout]:
        """All four, which have one number for each channel."""
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
        """By moments of the batch in training, else by moving statistics."""
        (x,) = inputs
        learns = bool(training and layer.trainable)
        names = [n for n in _WEIGHTS if getattr(layer, n, None) is not None]
        weights = {n: getattr(layer, n)._value for n in names}
        values = {n: v.sharded_value().shards for n, v in weights.items()}
        axis = x.layout.axis + x.ndim
        shards = []
        for i, device in enumerate(x.layout.devices):

            def run(shard: tf.Tensor, *operands: tf.Tensor) -> Any:
                given = dict(zip(names, operands, strict=True))
                return _normalized(layer, shard, axis, given, learns)

            result, mean, variance = on_device(run, device)(
                x.shards[i], *(values[name][i] for name in names)
            )
            shards.append(result)
            if learns:
                with tf.device(device):
                    weights["moving_mean"].shards[i].assign(mean)
                    weights["moving_variance"].shards[i].assign(variance)
        return ShardedTensor(shards, x.layout)


def _normalized(
    layer: Any,
    x: tf.Tensor,
    axis: int,
    given: Mapping[str, tf.Tensor],
    learns: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """A shard, and its new moving statistics."""
    x = widened(x)
    mean, variance = given["moving_mean"], given["moving_variance"]
    moving = mean, variance
    if learns:
        axes = [a for a in range(x.shape.rank) if a != axis]
        mean, variance = keras.ops.moments(x, axes)
        moving = tuple(moved(layer, moving, (mean, variance)))
    return (normalized(layer, x, axis, given, mean, variance), *moving)


def widened(x: tf.Tensor) -> tf.Tensor:
    """In float32 or wider, as Keras has it: narrower floats overflow."""
    return tf.cast(x, keras.backend.result_type(x.dtype.name, "float32"))


def normalized(
    layer: Any,
    x: tf.Tensor,
    axis: int,
    given: Mapping[str, tf.Tensor],
    mean: tf.Tensor,
    variance: tf.Tensor,
) -> tf.Tensor:
    """What is widened, normalized as Keras does it."""
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
    """New moving statistics, by those of a batch."""
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
