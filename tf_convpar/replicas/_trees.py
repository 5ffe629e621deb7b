"""Sums and copies of vectors along a tree of devices: log P messages deep."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.placement import on_device


def tree_sum(
    vectors: Sequence[tf.Tensor], devices: Sequence[str], root: str
) -> tf.Tensor:
    """The sum of a vector from each device, on the root.

    In each round every second device sends to its neighbour, which adds: with
    P devices the last message is sent after `log2 P` others.

    Args:
        vectors: One from each device.
        devices: Their names.
        root: Where the sum is wanted.
    """
    left = list(zip(vectors, devices, strict=True))
    # The root adds last, so that the sum ends where it is wanted.
    left.sort(key=lambda item: item[1] != root)
    while len(left) > 1:
        paired = []
        for i in range(0, len(left), 2):
            vector, device = left[i]
            if i + 1 < len(left):
                vector = on_device(_add, device)(vector, left[i + 1][0])
            paired.append((vector, device))
        left = paired
    return on_device(tf.identity, root)(left[0][0])


def _add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """`a + b`, which stays that.

    TensorFlow makes one AddN of sums of sums, and AddN begins with whichever
    of its inputs' memory is free: the order, so the last bit, would depend on
    times of arrival. It does so only where it knows a tensor's shape.
    """
    hidden = tf.compat.v1.placeholder_with_default(a, shape=None)
    return tf.ensure_shape(hidden + b, a.shape)


def tree_copies(
    vector: tf.Tensor, devices: Sequence[str], root: str
) -> list[tf.Tensor]:
    """A copy on each device, sent on by those that have one already."""
    order = sorted(devices, key=lambda name: name != root)
    copies: dict[str, tf.Tensor] = {}
    have = [vector]
    for device in order:
        if device == root:
            copies[device] = vector
            continue
        copies[device] = on_device(tf.identity, device)(have[0])
        # Who has sent goes to the end of the queue, with who has received.
        have = [*have[1:], have[0], copies[device]]
    return [copies[device] for device in devices]
