"""One core for each device, where the system can be told so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence


def usable() -> list[int]:
    """The cores that this process may run on."""
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


def speeds(devices: int, cores: int) -> tuple[float, ...]:
    """What part of a core each device has for its kernels.

    ```python
    speeds(devices=3, cores=2)  # (0.25, 1.0, 0.5)
    ```

    The first device is the chief: it runs the rest of the network besides,
    and all the sending, which at the size of this network takes it about as
    long as half of its kernels would.
    """
    sharing = [
        len(range(index % cores, devices, cores)) for index in range(devices)
    ]
    own, *others = (1 / count for count in sharing)
    return (own / 2, *others)
