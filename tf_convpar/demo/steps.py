"""What is seen of each training step: loss, time, bytes on the wire."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

import keras
import numpy as np
import psutil

# The first steps trace and compile, and start connections.
_WARM_UP = 3


class Steps(keras.callbacks.Callback):
    """Measures every step of one `fit` of one epoch.

    ```python
    steps = Steps()
    model.fit(batches, callbacks=[steps])
    steps.losses, steps.median_s, steps.median_bytes
    ```

    Args:
        on_step: Called after every step.
    """

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._marks: list[float] = []
        self._bytes: list[int] = []
        self._total = 0.0
        self._on_step = on_step
        self._loopback = _loopback()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes where clock and counter stand."""
        # Keras gives the mean since the epoch began.
        total = (logs or {})["loss"] * (batch + 1)
        self.losses.append(total - self._total)
        self._total = total
        self._marks.append(time.perf_counter())
        self._bytes.append(self._sent())
        self._on_step()

    @property
    def median_s(self) -> float:
        """Seconds between the ends of two steps."""
        return float(np.median(np.diff(self._marks)[_WARM_UP - 1 :]))

    @property
    def median_bytes(self) -> float:
        """Bytes between processes of this machine in a step, both ways."""
        return float(np.median(np.diff(self._bytes)[_WARM_UP - 1 :]))

    def _sent(self) -> int:
        # What one end of a loopback sends the other receives: count it once.
        counters = psutil.net_io_counters(pernic=True)
        return counters[self._loopback].bytes_sent


def _loopback() -> str:
    """The interface that carries this machine's talk with itself."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            try:
                # An IPv6 address may have its interface behind a `%`.
                host = ipaddress.ip_address(address.address.partition("%")[0])
            except ValueError:
                continue  # A hardware address.
            if host.is_loopback:
                return name
    raise RuntimeError(
        "Expected a loopback interface to count bytes on. Received: "
        f"{sorted(psutil.net_if_addrs())}."
    )
