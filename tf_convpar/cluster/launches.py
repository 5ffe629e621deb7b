"""Ids of launches, which tell workers of one `convpar launch` from another's.

A launch gives all that it starts an id. A worker of another launch, which was
killed a moment ago or still runs, may answer at the address of a new one. So a
chief with an id asks each worker for its id. Workers that were started by hand
have none, and any chief may use them.

A chief also tells its launch of steps that it makes although workers have
ended: the launch then lets it go on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable

from tf_convpar import files
from tf_convpar import machines
from tf_convpar.cluster.spec import Task

# The environment variable that has the id.
VARIABLE = "CONVPAR_LAUNCH"


def new() -> str:
    """An id that no other launch has."""
    return secrets.token_hex(8)


def strangers(tasks: Iterable[Task]) -> list[Task]:
    """The tasks that another launch has started.

    Args:
        tasks: Tasks that TensorFlow has joined.
    """
    launch = os.environ.get(VARIABLE)
    if not launch:
        return []
    return [task for task in tasks if _launch_of(task) not in (launch, None)]


def refusal(tasks: Iterable[Task]) -> str:
    """The message of the error about `strangers`."""
    return (
        "Expected workers that this `convpar launch` has started. Received "
        f"{', '.join(map(str, tasks))}, of another launch: one that still "
        "runs, or that was killed, whose workers end within 15 s. Wait, or "
        "end it, or take other ports; then start this one again."
    )


def tell() -> None:
    """Tells the launch that this program has made a step."""
    if launch := os.environ.get(VARIABLE):
        # No reason to lose a training.
        with contextlib.suppress(OSError, ValueError):
            files.note_step(launch)


def _launch_of(task: Task) -> str | None:
    """The id of the launch that has started a task; None if none has."""
    device = f"{task.name}/device:CPU:0"
    return machines.environment(device).get(VARIABLE) or None
