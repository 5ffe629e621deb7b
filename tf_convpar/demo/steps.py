"""Measures each training step: its loss, time and bytes on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable

import keras
import numpy as np

# The number of first steps, which trace, compile and start connections.
_WARM_UP = 3


class Steps(keras.callbacks.Callback):
    """Measures every step of one `fit` of one epoch.

    ```python
    total, counted_on = machines.byte_counter([2222, 2223])
    steps = Steps(total)
    model.fit(batches, callbacks=[steps])
    steps.losses, steps.median_s, steps.median_bytes
    ```

    Args:
        total: Returns how many bytes have travelled until now.

    Attributes:
        losses: Loss of every step.
        on_step: Called after every step.
    """

    def __init__(self, total: Callable[[], int]) -> None:
        super().__init__()
        self.on_step: Callable[[], None] = lambda: None
        self.losses: list[float] = []
        self._marks: list[float] = []
        self._bytes: list[int] = []
        self._loss_sum = 0.0
        self._total = total

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the loss, and where clock and counter stand."""
        self.on_step()
        # Keras gives the mean loss since the epoch began.
        loss_sum = (logs or {})["loss"] * (batch + 1)
        self.losses.append(loss_sum - self._loss_sum)
        self._loss_sum = loss_sum
        self._marks.append(time.perf_counter())
        self._bytes.append(self._total())

    @property
    def median_s(self) -> float:
        """Median seconds between the ends of two steps."""
        return float(np.median(np.diff(self._marks)[_WARM_UP - 1 :]))

    @property
    def median_bytes(self) -> float:
        """Median bytes between the processes in a step, both ways."""
        return float(np.median(np.diff(self._bytes)[_WARM_UP - 1 :]))
