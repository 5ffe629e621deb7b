"""Sums and copies of vectors along a tree of devices: log P messages deep.

Who sends to whom is stated once, as pairs of devices in the order in which
messages leave. What executes and what is predicted read the same pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_convpar.placement._primitives import on_device


def sum_pairs(devices: Sequence[str], root: str) -> list[tuple[str, str]]:
    """Who sends to whom, for the sum of what all devices have.

    ```python
    sum_pairs(["a", "b", "c", "d"], "a")  # b to a, d to c, c to a
    ```

    In each round every second device sends to its neighbour, which adds: with
    P devices the last message is sent after `log2 P` others.
    """
    # The root adds last, so that the sum ends where it is wanted.
    left = sorted(devices, key=lambda name: name != root)
    pairs = []
    while len(left) > 1:
        pairs += [(b, a) for a, b in zip(left[::2], left[1::2], strict=False)]
        left = left[::2]
    if left[0] != root:
        pairs.append((left[0], root))
    return pairs


def copy_pairs(devices: Sequence[str], root: str) -> list[tuple[str, str]]:
    """Who sends to whom, for copies on all devices of what the root has.

    ```python
    copy_pairs(["a", "b", "c", "d"], "a")  # a to b, a to c, b to d
    ```

    Those that have a copy already send it on.
    """
    have = [root]
    pairs = []
    for device in devices:
        if device != root:
            pairs.append((have[0], device))
            # Who has sent goes to the end of the queue, with who has received.
            have = [*have[1:], have[0], device]
    return pairs


def tree_sum(
    vectors: Sequence[tf.Tensor], devices: Sequence[str], root: str
) -> tf.Tensor:
    """The sum of a vector from each device, on the root.

    Args:
        vectors: One from each device.
        devices: Their names.
        root: Where the sum is wanted.
    """
    held = dict(zip(devices, vectors, strict=True))
    for source, target in sum_pairs(devices, root):
        if target in held:
            adds = on_device(ordered_sum, target)
            held[target] = adds(held[target], held[source])
        else:
            held[target] = on_device(tf.identity, target)(held[source])
    return held[root]


def ordered_sum(*vectors: tf.Tensor) -> tf.Tensor:
    """`a + b + c`, added in this order.

    TensorFlow makes one AddN of sums of sums, and AddN begins with whichever
    of its inputs' memory is free: the order, so the last bit, would depend on
    times of arrival. It does so only where it knows a tensor's shape.
    """
    total, *others = vectors
    for vector in others:
        hidden = tf.compat.v1.placeholder_with_default(total, shape=None)
        total = tf.ensure_shape(hidden + vector, total.shape)
    return total


def tree_copies(
    vector: tf.Tensor, devices: Sequence[str], root: str
) -> list[tf.Tensor]:
    """A copy on each device of a vector that is on the root."""
    copies = {root: vector}
    for source, target in copy_pairs(devices, root):
        copies[target] = on_device(tf.identity, target)(copies[source])
    return [copies[device] for device in devices]
