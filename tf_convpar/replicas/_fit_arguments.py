"""What Keras' `fit` makes of its arguments, for replicas' `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar.replicas._local_data import LocalDatasets
from tf_convpar.replicas.data import Arrays
from tf_convpar.replicas.data import Dataset
from tf_convpar.replicas.data import Fed
from tf_convpar.replicas.data import Source


class ClassWeights:
    """Weighs samples by their classes, as `class_weight=` asks for.

    ```python
    x, y, sample_weight = ClassWeights({0: 1.0, 1: 5.0})(x, y)
    ```

    Args:
        weights: Those of classes; 1 for those that are not named.
    """

    def __init__(self, weights: Mapping[int, float]) -> None:
        self._weights = dict(weights)

    def __call__(
        self, x: Any, y: Any, sample_weight: Any = None
    ) -> tuple[Any, ...]:
        """A batch with the weights of its samples.

        Raises:
            ValueError: It has weights, or several outputs.
        """
        if sample_weight is not None or keras.tree.is_nested(y):
            had = "samples' weights" if sample_weight is not None else "several"
            raise ValueError(
                "Expected `class_weight` with one output, and without weights "
                f"of samples beside it. Received: {had}."
            )
        classes = tf.convert_to_tensor(y)
        if classes.shape.rank > 1 and classes.shape[-1] != 1:
            classes = tf.argmax(classes, axis=-1)
        elif classes.shape.rank > 1:
            classes = tf.squeeze(classes, axis=-1)
        classes = tf.cast(tf.round(tf.cast(classes, tf.float32)), tf.int64)
        weights = tf.ones(tf.shape(classes), keras.config.floatx())
        for label, weight in self._weights.items():
            other = tf.fill(tf.shape(classes), tf.cast(weight, weights.dtype))
            weights = tf.where(classes == label, other, weights)
        return x, y, weights


def split_off(
    data: tuple[Any, ...], validation_split: float
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arrays to train with, and the last part of them, to validate with.

    Args:
        data: `x`, `y` and perhaps samples' weights; None is no array.
        validation_split: The part of samples that are to validate with.

    Raises:
        ValueError: They are no arrays, or one of the two parts has none.
    """
    arrays = [a for a in keras.tree.flatten(data) if a is not None]
    if not all(hasattr(a, "__array__") for a in arrays):
        raise ValueError(
            "Expected arrays with `validation_split`. Received: "
            f"{type(arrays[0]).__name__}. Give `validation_data` instead."
        )
    samples = len(arrays[0])
    begin = int(np.floor(samples * (1 - validation_split)))
    if not 0 < begin < samples:
        raise ValueError(
            "Expected a validation_split that leaves samples to train and to "
            f"validate with. Received: {validation_split} of {samples}."
        )

    def part(which: slice) -> tuple[Any, ...]:
        cut = [
            None
            if of is None
            else keras.tree.map_structure(lambda a: a[which], of)
            for of in data
        ]
        return tuple(cut)

    return part(slice(begin)), part(slice(begin, None))


def source_of(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    devices: Sequence[str] = (),
) -> Source:
    """The source for what a user gives to `fit`.

    Args:
        x: As for `Method.fit`.
        y: As for Keras.
        sample_weight: As for Keras.
        shuffle: As for Keras.
        class_weight: As for Keras.
        devices: Names of the replicas' devices.

    Raises:
        ValueError: There is nothing, or `y` beside a dataset.
    """
    weigh = ClassWeights(class_weight) if class_weight else None
    datasets = (tf.data.Dataset, keras.utils.PyDataset)
    if isinstance(x, datasets) or hasattr(x, "__next__") or callable(x):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "Expected `y` and `sample_weight` within the dataset's "
                f"elements. Received: x={type(x).__name__} and one of them."
            )
        if callable(x) and not isinstance(x, datasets):
            make = (lambda c: x(c).map(weigh)) if weigh else x
            return LocalDatasets(make, devices)
        if isinstance(x, tf.data.Dataset):
            if weigh:
                x, weigh = x.map(weigh), None
            try:
                return Dataset(x)
            except (tf.errors.FailedPreconditionError, tf.errors.OpError):
                # Part of it is Python's, which no other task can run.
                return Fed(x)
        return Fed(x, (lambda batch: weigh(*batch)) if weigh else tuple)
    if x is None or y is None:
        raise ValueError(
            "Expected x and y, or a dataset. Received: "
            f"x={type(x).__name__}, y={type(y).__name__}."
        )
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    return Arrays(weigh(*parts) if weigh else parts, shuffle)
