"""The processor cores that this process may run on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may run on.

    ```python
    usable_cores()  # [0, 1]; under `taskset --cpu-list 1` [1]
    ```
    """
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # Only Linux has it.
        return list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether processes can be bound to cores here."""
    return hasattr(os, "sched_setaffinity")


def pin(processes: Sequence[int], cores: Sequence[int]) -> None:
    """Binds each process to a core; several share one if cores are too few.

    ```python
    pin([chief.pid, worker.pid], cores=[0, 1])
    ```

    Do it before a process starts threads: only later threads are bound too.

    Args:
        processes: Ids of the processes.
        cores: Numbers of the cores, which are taken in turn.
    """
    for index, process in enumerate(processes):
        # Others find out that a process has ended already.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process, {cores[index % len(cores)]})
