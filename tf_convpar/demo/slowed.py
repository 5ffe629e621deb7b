"""Makes workers slower than the chief, each by another factor.

On one machine all processes are equally fast. Here the workers have one core
together, in turn: each is stopped while another runs, for some milliseconds at
a time. So what one has of the core is what it was given, whatever the others
do, as on slower machines. `nice` would not do: it gives what others leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

# Seconds in which each has had its turn.
_ROUND_S = 4e-3


def parts(workers: int) -> tuple[float, ...]:
    """The part of one core that each worker has.

    ```python
    parts(2)  # (0.6, 0.4)
    ```
    """
    weights = range(workers + 1, 1, -1)
    return tuple(weight / sum(weights) for weight in weights)


@contextlib.contextmanager
def in_turn(pids: Sequence[int]) -> Iterator[Callable[[], None]]:
    """Within it, processes may run one after the other, for their `parts`.

    Args:
        pids: Children of this process, none of which it has waited for.

    Yields:
        A function that begins with it.
    """
    begun, over = threading.Event(), threading.Event()

    def send(pid: int, number: int) -> None:
        # Whoever watches them finds out that one has ended.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def go() -> None:
        begun.wait()
        for pid in pids:
            send(pid, signal.SIGSTOP)
        while not over.is_set():
            for pid, part in zip(pids, parts(len(pids)), strict=True):
                send(pid, signal.SIGCONT)
                over.wait(part * _ROUND_S)
                send(pid, signal.SIGSTOP)
        for pid in pids:
            send(pid, signal.SIGCONT)

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
