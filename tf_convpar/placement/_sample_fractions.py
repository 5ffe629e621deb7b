"""Fraction of all samples that each device has, exchanged once in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Attribute of a graph with the fractions that devices have exchanged in it.
_NAME = "_convpar_parts"


class Part(NamedTuple):
    """Fractions of all samples, as tensors on one device.

    Attributes:
        fractions: Fraction of all samples on each device, `(devices,)`.
        one_of_n: 1 / n, of n samples in all; 0 where its own is made up.
    """

    fractions: Any
    one_of_n: Any


def parts_of_samples(x: ShardedTensor) -> list[Part]:
    """For each device, the fractions of all samples that devices have.

    ```python
    parts_of_samples(x)[1].fractions  # on x.layout.devices[1]
    ```

    Where they are not known while tracing, devices tell each other once in a
    graph: tensors made of the same samples have the same `counts`.

    Args:
        x: Samples, or a tensor made of them.
    """
    counts = x.counts or [shard.shape[0] for shard in x.shards]
    if all(isinstance(count, int) for count in counts):
        total = sum(counts)
        fractions = np.array(counts, "float64") / total
        return [Part(fractions, np.float64((n > 0) / total)) for n in counts]
    if tf.executing_eagerly():
        return _exchanged_parts(counts, x.layout.devices)
    graph = tf.compat.v1.get_default_graph()
    told_parts: dict[int, Any] = getattr(graph, _NAME, {})
    setattr(graph, _NAME, told_parts)
    if id(counts) not in told_parts:
        # The counts are kept as well, so that no others have their number.
        told_parts[id(counts)] = (
            counts,
            _exchanged_parts(counts, x.layout.devices),
        )
    parts: list[Part] = told_parts[id(counts)][1]
    return parts


def _exchanged_parts(
    counts: Sequence[Any], devices: Sequence[str]
) -> list[Part]:
    def number(count: tf.Tensor) -> tf.Tensor:
        return tf.cast(count, tf.float64)

    sent = [
        broadcast(on_device(number, device)(count), devices, device)
        for count, device in zip(counts, devices, strict=True)
    ]
    parts = []
    for i, device in enumerate(devices):

        def part_of(*counts: tf.Tensor, i: int = i) -> list[tf.Tensor]:
            counts_there = tf.stack(counts)
            total = tf.reduce_sum(counts_there)
            has_samples = tf.cast(counts_there[i] > 0, counts_there.dtype)
            return [counts_there / total, has_samples / total]

        numbers = on_device(part_of, device)(*(row[i] for row in sent))
        parts.append(Part(*without_gradients(device, *numbers)))
    return parts


def without_gradients(device: str, *numbers: tf.Tensor) -> list[tf.Tensor]:
    """Counts or fractions of samples on a device, cut off from gradients.

    Differentiating by a function's arguments looks for variables before all
    else that it reads, and before these numbers lies all of the model so far.
    """
    with tf.device(device):
        return [tf.stop_gradient(number) for number in numbers]
