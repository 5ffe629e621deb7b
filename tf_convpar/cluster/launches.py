"""What the tasks of one `convpar launch` know of each other, and tell it.

A launch gives all that it starts an id. A worker of another one, which was
killed a moment ago or still runs, answers as the own one would at its address;
so a chief with an id asks each worker what it was started with. Workers that
somebody started by hand have none, and are anybody's.

A chief also says that it makes steps which outlive workers, so that the launch
leaves it alone when one ends.
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
    """Those that another launch has started.

    Args:
        tasks: Some that TensorFlow has joined.
    """
    own = os.environ.get(VARIABLE)
    if not own:
        return []
    return [task for task in tasks if _of(task) not in (own, None)]


def refusal(found: Iterable[Task]) -> str:
    """What is said of `strangers`."""
    return (
        "Expected workers that this `convpar launch` has started. Received "
        f"{', '.join(map(str, found))}, of another launch: one that still "
        "runs, or that was killed, whose workers end within 15 s. Wait, or "
        "end it, or take other ports; then start this one again."
    )


def tell() -> None:
    """Says that this program makes steps, whatever workers end."""
    if launch := os.environ.get(VARIABLE):
        # No reason to lose a training.
        with contextlib.suppress(OSError, ValueError):
            files.say_step(launch)


def _of(task: Task) -> str | None:
    """The id of the launch that has started a task; None if none has."""
    device = f"{task.name}/device:CPU:0"
    return machines.environment(device).get(VARIABLE) or None
