"""How fast the devices are: workers are made slower than the chief.

On one machine all processes are equally fast. Here each worker is stopped
whenever it has used more of a processor than its part, and goes on when it is
within it again. So it answers at once after it has waited, as a slower machine
does, and computes at its own speed whatever the others do. `nice` would not do:
it gives what others leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import psutil

# Seconds between looks at what each has used.
_LOOK_S = 1e-3
# Seconds of its part that one may use later, after it has waited.
_SAVED_S = 4e-3


def parts(devices: int, cores: int, star: bool) -> tuple[float, ...]:
    """The part of a core that each device has, the chief first.

    ```python
    parts(devices=3, cores=2, star=False)  # (1.0, 0.6, 0.4)
    parts(devices=3, cores=2, star=True)  # (0.5, 1.0, 0.5)
    ```

    Args:
        devices: Number of devices, each of which is a process.
        cores: Number of cores.
        star: Whether devices are bound to cores in turn. Otherwise the chief
            has one, and the workers share another, the first with the most.
    """
    if star:
        return tuple(
            1 / len(range(device % cores, devices, cores))
            for device in range(devices)
        )
    weights = range(devices, 1, -1)
    return (1.0, *(weight / sum(weights) for weight in weights))


@contextlib.contextmanager
def to_parts(
    pids: Sequence[int], most: Sequence[float]
) -> Iterator[Callable[[], None]]:
    """Within it, processes have at most these parts of a core.

    Args:
        pids: Children of this process, none of which it has waited for.
        most: The part of each. A single process is let be.

    Yields:
        A function that begins with it.
    """
    begun, over = threading.Event(), threading.Event()

    def go() -> None:
        begun.wait()
        limits = list(map(_Limit, pids, most))
        while not over.wait(_LOOK_S):
            for limit in limits:
                limit.look()
        for limit in limits:
            limit.end()

    thread = threading.Thread(target=go)
    if len(pids) > 1:
        thread.start()
    try:
        yield begun.set
    finally:
        over.set()
        begun.set()
        if len(pids) > 1:
            thread.join()


class _Limit:
    """Stops and continues one process."""

    def __init__(self, pid: int, part: float) -> None:
        self._pid, self._part = pid, part
        self._looked, self._used = time.monotonic(), _used_s(pid)
        self._left = 0.0
        self._stopped = False

    def look(self) -> None:
        """Stops it if it has used more than its part, or lets it go on."""
        now, used = time.monotonic(), _used_s(self._pid)
        earned = self._part * (now - self._looked)
        self._left += earned - (used - self._used)
        self._left = min(self._left, self._part * _SAVED_S)
        self._looked, self._used = now, used
        if (self._left < 0) != self._stopped:
            self._stopped = not self._stopped
            self._send(signal.SIGSTOP if self._stopped else signal.SIGCONT)

    def end(self) -> None:
        """Lets it go on."""
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        # Whoever watches it finds out that it has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def _used_s(pid: int) -> float:
    """Seconds of processors that a process has used; 0 if it has ended."""
    if sys.platform == "linux":
        # The clock of its processor time, as clock_getcpuclockid(3) gives it.
        # What /proc says of it moves on in steps of 10 ms.
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | 2)
        return 0.0
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
