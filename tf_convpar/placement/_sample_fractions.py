"""Which part of all samples each device has, told once in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_convpar.placement._primitives import broadcast
from tf_convpar.placement._primitives import on_device
from tf_convpar.placement._sharded_tensor import ShardedTensor

# Where a graph has what devices have told each other in it.
_NAME = "_convpar_parts"


class Part(NamedTuple):
    """What a device knows of how many samples there are.

    Attributes:
        fractions: Which part of all samples each device has, `(devices,)`.
        one_of_n: 1 / n, of n samples in all; 0 where its own is made up.
    """

    fractions: Any
    one_of_n: Any


def parts_of_samples(x: ShardedTensor) -> list[Part]:
    """For each device, which part of all samples is on which one.

    ```python
    parts_of_samples(x)[1].fractions  # on x.layout.devices[1]
    ```

    Where it is not known while tracing, devices tell each other once in a
    graph: what was made of the same samples has the same `counts`.

    Args:
        x: Samples, or what was made of them.
    """
    counts = x.counts or [shard.shape[0] for shard in x.shards]
    if all(isinstance(count, int) for count in counts):
        total = sum(counts)
        fractions = np.array(counts, "float64") / total
        return [Part(fractions, np.float64((n > 0) / total)) for n in counts]
    if tf.executing_eagerly():
        return _told(counts, x.layout.devices)
    graph = tf.compat.v1.get_default_graph()
    made: dict[int, Any] = getattr(graph, _NAME, {})
    setattr(graph, _NAME, made)
    if id(counts) not in made:
        # The counts are kept as well, so that no others have their number.
        made[id(counts)] = counts, _told(counts, x.layout.devices)
    parts: list[Part] = made[id(counts)][1]
    return parts


def _told(counts: Sequence[Any], devices: Sequence[str]) -> list[Part]:
    def number(count: tf.Tensor) -> tf.Tensor:
        return tf.cast(count, tf.float64)

    sent = [
        broadcast(on_device(number, device)(count), devices, device)
        for count, device in zip(counts, devices, strict=True)
    ]
    found = []
    for i, device in enumerate(devices):

        def of(*counts: tf.Tensor, i: int = i) -> list[tf.Tensor]:
            each = tf.stack(counts)
            total = tf.reduce_sum(each)
            own = tf.cast(each[i] > 0, each.dtype)
            return [each / total, own / total]

        told = on_device(of, device)(*(row[i] for row in sent))
        found.append(Part(*without_gradients(device, *told)))
    return found


def without_gradients(device: str, *numbers: tf.Tensor) -> list[tf.Tensor]:
    """Numbers on a device that say how many samples there are.

    Whoever differentiates with respect to what a function was given looks for
    variables before all else that it reads: before these numbers lies all of
    the model up to here.
    """
    with tf.device(device):
        return [tf.stop_gradient(number) for number in numbers]
