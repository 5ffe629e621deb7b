"""Dropout and noise on shards of samples, as the unsplit layer draws them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.placement import Move
from tf_convpar.placement import Place
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import everywhere
from tf_convpar.placement import in_shards
from tf_convpar.placement import on_device
from tf_convpar.placement import without_gradients
from tf_convpar.sharding.rules.dropout import Dropout
from tf_convpar.sharding.rules.dropout import dropped
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import sent

_L = keras.layers


class Drawing(SampleRule):
    """Every device draws the noise of all samples, and uses that of its own.

    All draw from one seed. For noise that is no mask the layer's own `call`
    draws: it gets a whole batch, with zeros in the place of the other devices'
    samples.
    """

    layers = (
        *Dropout.layers,
        *(_L.GaussianDropout, _L.GaussianNoise, _L.AlphaDropout),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether samples do not all share one mask."""
        noise = getattr(layer, "noise_shape", None)
        return not noise or noise[0] != 1

    def moves(
        self,
        layer: Any,
        layout: SampleLayout,
        shapes: Sequence[tuple[int, ...]],
        input_places: Sequence[Place],
        before: bool,
        training: bool,
    ) -> list[Move]:
        """The tensors that are sent: the input, and the numbers of samples.

        The input is sent only if it lies elsewhere.
        """
        moves = [
            sent(layer, shapes[0], input_places[0], layout, before, layout)
        ]
        if training:
            parts = len(layout.devices)
            each = dataclasses.replace(layout, shares=(1,) * parts)
            devices, owner = layout.devices, layout.owner
            moves.append(Move((parts,), each, devices, owner, 4, False))
        return moves

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """Applies to each device's samples what the unsplit layer would."""
        x = in_shards(args[0], layout)
        training = kwargs.get("training", False)
        drawn = getattr(layer, "rate", getattr(layer, "stddev", 0))
        if not training or not drawn:
            return x
        generator = layer.seed_generator
        seed = generator.next()
        counts = _counts(x)
        shards = []
        for i, (shard, device) in enumerate(
            zip(x.shards, layout.devices, strict=True)
        ):

            def run(
                shard: tf.Tensor, i: int = i, counts: Any = counts[i]
            ) -> tf.Tensor:
                first = tf.reduce_sum(counts[:i])
                after = tf.reduce_sum(counts[i + 1 :])
                # One at least, though none of the batch may be here.
                count = tf.shape(shard)[0]
                if isinstance(layer, Dropout.layers):
                    total = first + count + after
                    return dropped(layer, shard, 0, first, total, seed)
                ends = [[first, after], *[[0, 0]] * (shard.shape.rank - 1)]
                padded = tf.pad(shard, ends)
                with keras.StatelessScope(
                    [(generator.state, seed)], initialize_variables=False
                ):
                    y = type(layer).call(layer, padded, training=True)
                y = y[first : first + count]
                return tf.ensure_shape(y, shard.shape)

            shards.append(on_device(run, device)(shard))
        return x.with_shards(shards, layout)


def _counts(x: ShardedTensor) -> list[tf.Tensor]:
    """The numbers of samples of all devices, as a tensor on each device."""
    known_counts = x.counts or [shard.shape[0] for shard in x.shards]
    if all(isinstance(count, int) for count in known_counts):
        return [tf.constant(known_counts, tf.int32)] * len(known_counts)
    layout = x.layout
    counts = [
        on_device(lambda n: tf.cast(n, tf.int32)[None], device)(count)
        for count, device in zip(known_counts, layout.devices, strict=True)
    ]
    gathered = everywhere(
        ShardedTensor(counts, layout), layout.devices, layout.owner
    )
    return [
        without_gradients(device, number)[0]
        for number, device in zip(gathered, layout.devices, strict=True)
    ]
