"""Logs the batches since a model was copied, to learn from them again."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import has_schedule
from tf_convpar.callbacks.snapshot import optimizers_of

# In the place of a step: the metrics begin anew, as an epoch does.
_EPOCH = object()


class ReplayLog:
    """Batches and learning rates of the steps since the last copy.

    ```python
    log = ReplayLog()
    log.step(data, rates=[0.1])
    at = log.now  # A copy is begun,
    log.step(data, rates=[0.1])
    log.forget(at)  # and there: one step is left.
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

    def step(self, data: Any, rates: Sequence[float | None]) -> None:
        """Notes that the model has learned from batches, at learning rates."""
        self._kept.append((data, rates))
        self.bytes += _bytes(data)

    def forget(self, until: int) -> None:
        """Drops the entries up to `until`, as there is a copy of that state."""
        del self._kept[: until - self.start]
        self.start = until
        self.bytes = sum(_bytes(k[0]) for k in self._kept if k is not _EPOCH)

    def again(
        self,
        step: Callable[[Any, Sequence[float | None]], Any],
        epoch: Callable[[], None],
    ) -> None:
        """Repeats all entries in their order.

        Args:
            step: Makes the step of batches and learning rates.
            epoch: Begins the metrics anew.
        """
        for kept in self._kept:
            if kept is _EPOCH:
                epoch()
            else:
                step(*kept)


def rates_of(model: keras.Model) -> list[float | None]:
    """Learning rates, which callbacks may set; None of a schedule."""
    return [
        None if has_schedule(optimizer) else float(optimizer.learning_rate)
        for optimizer in _optimizers(model)
    ]


def set_rates(model: keras.Model, rates: Sequence[float | None]) -> None:
    """Sets learning rates, but not those of schedules (None)."""
    for optimizer, rate in zip(_optimizers(model), rates, strict=True):
        if rate is not None:
            optimizer.learning_rate = rate


def _optimizers(model: keras.Model) -> list[Any]:
    """All optimizers of a model that have a rate."""
    return [each for o in optimizers_of(model) for each in _within(o)]


def _within(optimizer: Any) -> list[Any]:
    """An optimizer, or those within one that scales losses or selects."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return _within(inner)
    several = getattr(optimizer, "optimizers", None)
    return [optimizer] if several is None else list(several)


def _bytes(data: Any) -> int:
    return sum(
        x.shape.num_elements() * x.dtype.size
        if isinstance(x, tf.Tensor)
        else np.asarray(x).nbytes
        for x in keras.tree.flatten(data)
        if x is not None
    )
