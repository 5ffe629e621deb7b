"""A model's weights as one vector, which travels in one message.

You, Buluc and Demmel (SC17), section 5.2: with a latency of `alpha` a message
and `beta` a byte, one message for all layers costs `alpha + n beta`, and one
for each of them `layers * alpha + n beta`; and contiguous memory is read
faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar.placement import consecutive_slices


class Packing:
    """How the values of some variables lie in a vector, one after another.

    ```python
    packing = Packing(model.trainable_variables)
    vector = packing.pack([v.value for v in model.trainable_variables])
    values = packing.unpack(vector)  # of the variables' shapes and dtypes
    ```

    Args:
        variables: Keras variables, built.
        dtype: Dtype of the vector.

    Attributes:
        sizes: Values of each variable.
        size: Length of the vector.
    """

    def __init__(self, variables: Sequence[Any], dtype: str) -> None:
        self.dtype = dtype
        self._shapes = [tuple(v.shape) for v in variables]
        self._dtypes = [tf.as_dtype(v.dtype) for v in variables]
        self.sizes = [math.prod(shape) for shape in self._shapes]
        self.size = sum(self.sizes)

    def pack(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """The vector of values in the order of the variables."""
        if not self.sizes:
            return tf.zeros([0], self.dtype)
        flat = [tf.reshape(tf.cast(v, self.dtype), [-1]) for v in values]
        return tf.concat(flat, axis=0)

    def pieces(
        self, values: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> list[tf.Tensor]:
        """The vector in pieces, each of only the values that lie in it.

        So a piece is there as soon as these are.
        """
        flat = [tf.reshape(tf.cast(v, self.dtype), [-1]) for v in values]
        return _regrouped(flat, self.sizes, sizes)

    def of_pieces(
        self, pieces: Sequence[tf.Tensor], sizes: Sequence[int]
    ) -> list[tf.Tensor]:
        """The values of a vector in pieces, each as soon as its pieces are."""
        return self._shaped(_regrouped(pieces, sizes, self.sizes))

    def cut(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """The part of each variable, still flat."""
        return consecutive_slices(vector, self.sizes)

    def unpack(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """The values that lie in a vector."""
        return self._shaped(self.cut(vector))

    def _shaped(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.cast(tf.reshape(part, shape), dtype)
            for part, shape, dtype in zip(
                parts, self._shapes, self._dtypes, strict=True
            )
        ]

    def read(self, variables: Sequence[Any]) -> tf.Tensor:
        """The vector of what Keras variables hold now."""
        return self.pack([tf.convert_to_tensor(v) for v in variables])

    def write(self, vector: tf.Tensor, variables: Sequence[Any]) -> None:
        """Assigns a vector's values to Keras variables."""
        for variable, value in zip(variables, self.unpack(vector), strict=True):
            variable.assign(value)


def _regrouped(
    parts: Sequence[tf.Tensor], lengths: Sequence[int], sizes: Sequence[int]
) -> list[tf.Tensor]:
    """Vectors one behind another, in parts of other sizes.

    Args:
        parts: They.
        lengths: Theirs.
        sizes: The lengths that are wanted, in all as many values.
    """
    cuts = set(itertools.accumulate(sizes))
    crumbs = []
    begin = 0
    for part, length in zip(parts, lengths, strict=True):
        end = begin + length
        inner = sorted(cut for cut in cuts if begin < cut < end)
        if inner:
            lengths_within = np.diff([begin, *inner, end]).tolist()
            crumbs += consecutive_slices(part, lengths_within)
        elif length:
            crumbs.append(part)
        begin = end
    remaining = iter(crumbs)
    regrouped = []
    for size in sizes:
        group: list[tf.Tensor] = []
        while sum(int(crumb.shape[0]) for crumb in group) < size:
            group.append(next(remaining))
        if len(group) != 1:
            group = [tf.concat(group or [parts[0][:0]], axis=0)]
        regrouped += group
    return regrouped


def check_packable(model: Any) -> str:
    """The dtype of a model's trainable weights.

    Raises:
        ValueError: The model has none, or of several dtypes.
    """
    if not model.built or not model.trainable_variables:
        raise ValueError(
            "Expected a built model with trainable weights: they are what "
            f"replicas exchange. Received: {model.name!r}, with "
            f"{len(model.trainable_variables)} of them."
        )
    dtypes = sorted({str(v.dtype) for v in model.trainable_variables})
    if len(dtypes) > 1:
        raise ValueError(
            "Expected trainable weights of one dtype, which one vector can "
            f"hold. Received: weights of {', '.join(dtypes)}."
        )
    return dtypes[0]
