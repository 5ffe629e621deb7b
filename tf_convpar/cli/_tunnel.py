"""Joins tasks at localhost of several machines by the ssh that starts them.

Every connection carries its own task's port to a socket in a folder of this
machine, and the sockets of all others to their ports over there. So each
machine finds all tasks at localhost, and no port is open to the network. What
two of them send one another goes through this machine.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from tf_convpar.cluster.spec import Cluster
from tf_convpar.cluster.spec import Task

# A connection without its forwards would leave a task that nobody finds, and
# the socket of an earlier one, that was started again, lies in the way. A
# connection that the user's own ssh shares would keep the forwards for itself.
# Tasks are asked while they start, and ssh tells of each attempt that failed.
_OPTIONS = (
    "ExitOnForwardFailure=yes",
    "StreamLocalBindUnlink=yes",
    "ControlPath=none",
    "LogLevel=ERROR",
)


def at_localhost(addresses: Sequence[str]) -> list[str]:
    """Addresses at which each machine finds these tasks through the tunnel.

    ```python
    at_localhost(["a:2222", "b:2223"])  # ["localhost:2222", "localhost:2223"]
    ```

    Args:
        addresses: Host and port of each task.

    Raises:
        ValueError: One is no address, or two have a port or a machine in
            common.
    """
    pairs = []
    for address in addresses:
        # Checks the address, and who can reach whom.
        Cluster({"worker": (address,)})
        host, _, port = address.rpartition(":")
        pairs.append((host, int(port)))
    for i, what in ((1, "ports"), (0, "machines")):
        counts = collections.Counter(pair[i] for pair in pairs)
        twice = [str(value) for value, n in counts.items() if n > 1]
        if twice:
            raise ValueError(
                f"Expected different {what} for all tasks with --tunnel, as "
                "every machine finds all of them at its own localhost: "
                "a:2222,b:2223,c:2224. Received "
                f"{', '.join(twice)} more than once: {','.join(addresses)}."
            )
    return [f"localhost:{port}" for _, port in pairs]


def options(started: Task, tasks: Sequence[Task], folder: str) -> list[str]:
    """Options with which the ssh of one task forwards ports and sockets.

    Args:
        started: The task that this ssh starts.
        tasks: All tasks, at localhost.
        folder: A folder of this user's own, for the sockets. Ports instead
            could be reached by others on this machine, and be taken there.
    """
    words = [word for text in _OPTIONS for word in ("-o", text)]
    words += ["-L", f"{folder}/{started.port}:{started.address}"]
    for task in tasks:
        if task != started:
            words += ["-R", f"{task.address}:{folder}/{task.port}"]
    return words


def here(task: Task, folder: str) -> Task:
    """The task, with the socket at which this machine finds it."""
    return dataclasses.replace(task, address=f"unix:{folder}/{task.port}")
