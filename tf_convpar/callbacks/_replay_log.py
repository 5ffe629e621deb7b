"""Logs the batches since a model was copied, to learn from them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import has_schedule

# In the place of a step: the metrics begin anew, as an epoch does.
_EPOCH = object()


class ReplayLog:
    """Batches and learning rates of the steps since the last copy.

    ```python
    since = Since()
    since.step(data, rate=0.1)
    at = since.now  # A copy is begun,
    since.step(data, rate=0.1)
    since.forget(at)  # and there: one step is left.
    ```

    Attributes:
        start: Number of entries that were forgotten.
        bytes: Bytes of the batches that are kept.
    """

    def __init__(self) -> None:
        self.start = 0
        self.bytes = 0
        self._kept: list[Any] = []

    @property
    def now(self) -> int:
        """Number of all entries so far: the place of a copy that begins now."""
        return self.start + len(self._kept)

    @property
    def steps(self) -> int:
        """Number of steps that are kept."""
        return sum(kept is not _EPOCH for kept in self._kept)

    def epoch(self) -> None:
        """Notes that metrics have begun anew."""
        self._kept.append(_EPOCH)

    def step(self, data: Any, rate: float | None) -> None:
        """Notes that the model has learned from batches, at a learning rate."""
        self._kept.append((data, rate))
        self.bytes += _bytes(data)

    def forget(self, until: int) -> None:
        """Drops the entries up to `until`, as there is a copy of that state."""
        del self._kept[: until - self.start]
        self.start = until
        self.bytes = sum(_bytes(k[0]) for k in self._kept if k is not _EPOCH)

    def again(
        self,
        step: Callable[[Any, float | None], Any],
        epoch: Callable[[], None],
    ) -> None:
        """Repeats all entries in their order.

        Args:
            step: Makes the step of batches and a learning rate.
            epoch: Begins the metrics anew.
        """
        for kept in self._kept:
            if kept is _EPOCH:
                epoch()
            else:
                step(*kept)


def rate_of(model: keras.Model) -> float | None:
    """The learning rate, which callbacks may set; None of a schedule."""
    optimizer = model.optimizer
    if optimizer is None or has_schedule(optimizer):
        return None
    return float(optimizer.learning_rate)


def set_rate(model: keras.Model, rate: float | None) -> None:
    """Sets the learning rate, unless it is that of a schedule (None)."""
    if rate is not None:
        model.optimizer.learning_rate = rate


def _bytes(data: Any) -> int:
    return sum(
        x.shape.num_elements() * x.dtype.size
        if isinstance(x, tf.Tensor)
        else np.asarray(x).nbytes
        for x in keras.tree.flatten(data)
        if x is not None
    )
