"""Measures each training step: its loss, time and bytes on the wire."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from collections.abc import Iterable

import keras
import numpy as np
import psutil

from tf_convpar.machines import BytesReceived

# The number of first steps, which trace, compile and start connections.
_WARM_UP = 3


class Steps(keras.callbacks.Callback):
    """Measures every step of one `fit` of one epoch.

    ```python
    total, counted_on = byte_counter([2222, 2223])
    steps = Steps(total)
    model.fit(batches, callbacks=[steps])
    steps.losses, steps.median_s, steps.median_bytes
    ```

    Args:
        total: Returns how many bytes have travelled until now.
        on_step: Called after every step.
        most: Number of steps to measure, the first ones; None for all.
    """

    def __init__(
        self,
        total: Callable[[], int],
        on_step: Callable[[], None] = lambda: None,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self.losses: list[float] = []
        self._marks: list[float] = []
        self._bytes: list[int] = []
        self._loss_sum = 0.0
        self._total = total
        self._on_step = on_step
        self._most = most

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the loss, and where clock and counter stand."""
        self._on_step()
        if len(self.losses) == self._most:
            return
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


def byte_counter(ports: Iterable[int]) -> tuple[Callable[[], int], str]:
    """A counter of the bytes between tasks of this machine, both ways.

    ```python
    total, counted_on = byte_counter([2222, 2223])
    total()  # 51034112
    ```

    Args:
        ports: Ports of the tasks, which must listen already.

    Returns:
        A function that returns the bytes until now, and what it counts them
        on: `"sockets"`, or `"loopback"` where the kernel tells nothing of
        sockets. The counters of that interface include what other programs
        send.

    Raises:
        RuntimeError: Nobody listens at one of the ports.
    """
    try:
        return BytesReceived(ports).total, "sockets"
    except OSError:
        name = _loopback()

    def sent() -> int:
        # What one end of a loopback sends the other receives. It counts once.
        return int(psutil.net_io_counters(pernic=True)[name].bytes_sent)

    return sent, "loopback"


def _loopback() -> str:
    """Name of the interface that carries this machine's traffic with itself."""
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
