"""The processor cores that this process may run on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


def usable() -> list[int]:
    """Their numbers.

    ```python
    usable()  # [0, 1]; under `taskset --cpu-list 1` [1]
    ```
    """
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # Linux has it, others do not.
        return list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether processes can be bound to cores here."""
    return hasattr(os, "sched_setaffinity")


def pin(processes: Sequence[int], cores: Sequence[int]) -> None:
    """Binds each process to a core; with more of them, several share one.

    ```python
    pin([chief.pid, worker.pid], cores=[0, 1])
    ```

    Do it before a process starts threads: only later ones follow.

    Args:
        processes: Their ids.
        cores: Numbers of cores, taken in turn.
    """
    for index, process in enumerate(processes):
        # One that has ended already is found out by others.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process, {cores[index % len(cores)]})
