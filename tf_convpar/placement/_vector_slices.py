"""Consecutive parts of a vector, without copying them.

`tf.split` copies all parts of a vector. A slice shares the vector's memory if
it begins and ends where vector instructions may load from: at multiples of 64
bytes, or at the vector's end. Nearly all variables of a CNN do, since counts
of channels are multiples of 16.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf


def consecutive_slices(
    vector: tf.Tensor, sizes: Sequence[int]
) -> list[tf.Tensor]:
    """Cuts a vector into parts, copying only those that are not aligned.

    ```python
    kernel, bias = consecutive_slices(vector, [9408, 64])
    ```

    Args:
        vector: A vector.
        sizes: Length of each part. They sum to the vector's.

    Returns:
        The parts, in order.

    Raises:
        ValueError: The sizes sum to another length than the vector's.
    """
    ends = [0, *itertools.accumulate(sizes)]
    if vector.shape[0] not in (None, ends[-1]):
        raise ValueError(
            f"Expected sizes that sum to {vector.shape[0]}, the length of the "
            f"vector. Received: sizes that sum to {ends[-1]}."
        )
    if len(ends) == 2:
        return [vector]
    return [
        tf.slice(vector, [begin], [end - begin])
        for begin, end in itertools.pairwise(ends)
    ]
