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
from tf_convpar.placement import Layout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import on_device
from tf_convpar.sharding._lazy_shards import normalized_shards
from tf_convpar.sharding._normalized_sums import Statistics
from tf_convpar.sharding._normalized_sums import Term
from tf_convpar.sharding.rules._rule import Rule
from tf_convpar.sharding.rules._rule import Shape

MOVING = ("moving_mean", "moving_variance")
_WEIGHTS = (*MOVING, "gamma", "beta")


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
        axis, devices = x.layout.axis + x.ndim, x.layout.devices
        weights_on = [
            {n: values[n][i] for n in names} for i in range(len(devices))
        ]
        if not learns:
            moving_terms = [
                moving_term(layer, x.shards[i], weights_on[i], device)
                for i, device in enumerate(devices)
            ]
            return normalized_shards(x, moving_terms, axis, layer.compute_dtype)
        terms = []
        for i, device in enumerate(devices):
            term = own_term(layer, x.shards[i], axis, weights_on[i], device)
            terms.append(term)
            before = [weights_on[i][name] for name in MOVING]
            statistics: Any = term.statistics
            after = moved_on(device, layer, before, statistics.moments)
            with tf.device(device):
                for name, value in zip(MOVING, after, strict=True):
                    weights[name].shards[i].assign(value)
        return normalized_shards(x, terms, axis, layer.compute_dtype)


def own_term(
    layer: Any,
    x: tf.Tensor,
    axis: int,
    weights_here: Mapping[str, tf.Tensor],
    device: str,
) -> Term:
    """Maps on a device that are normalized by their own moments.

    Args:
        layer: The Keras layer.
        x: The maps.
        axis: The channel axis.
        weights_here: Values of the layer's weights for them, by their names.
        device: Name of the device.

    Returns:
        The maps with their statistics.
    """
    names = tuple(name for name in ("gamma", "beta") if name in weights_here)
    native = ops.native_on("ScaleChannels", device)

    def own_moments(x: tf.Tensor) -> tf.Tensor:
        return ops.channel_moments(x, axis, native=native)

    x, *weights = widened_on(device, x, *(weights_here[n] for n in names))
    moments = on_device(own_moments, device)(x)
    statistics = Statistics(moments, layer.epsilon, True, names)
    return Term(x, tuple(weights), statistics)


def moved_on(
    device: str,
    layer: Any,
    moving: Sequence[tf.Tensor],
    moments: tf.Tensor,
) -> list[tf.Tensor]:
    """New moving statistics on a device, of the moments of a batch."""
    native = ops.native_on("MovedMoments", device)

    def run(moments: tf.Tensor, *moving: tf.Tensor) -> list[tf.Tensor]:
        return ops.moved_moments(moving, moments, layer.momentum, native=native)

    moved: list[tf.Tensor] = on_device(run, device)(moments, *moving)
    return moved


def moving_term(
    layer: Any, x: tf.Tensor, weights_here: Mapping[str, tf.Tensor], device: str
) -> Term:
    """Maps on a device that are normalized by moving statistics.

    The arguments are those of `own_term`.
    """
    names = tuple(name for name in ("gamma", "beta") if name in weights_here)
    x, *weights = widened_on(
        device, x, *(weights_here[n] for n in (*names, *MOVING))
    )
    moments = on_device(lambda *moving: tf.stack(moving), device)(
        *weights[len(names) :]
    )
    statistics = Statistics(moments, layer.epsilon, False, names)
    return Term(x, tuple(weights[: len(names)]), statistics)


def _wide_dtype(x: tf.Tensor) -> str:
    dtype: str = keras.backend.result_type(x.dtype.name, "float32")
    return dtype


def widened_on(
    device: str, x: tf.Tensor, *weights: tf.Tensor
) -> list[tf.Tensor]:
    """Maps, and weights in their dtype, on a device: float32 or wider.

    Narrower floats overflow in sums of squares, so Keras widens them too.
    """
    if all(tensor.dtype == _wide_dtype(x) for tensor in (x, *weights)):
        return [x, *weights]

    def run(x: tf.Tensor, *weights: tf.Tensor) -> list[tf.Tensor]:
        wide = _wide_dtype(x)
        return [tf.cast(tensor, wide) for tensor in (x, *weights)]

    return list(on_device(run, device)(x, *weights))
