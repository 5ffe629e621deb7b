"""Tasks that leave a cluster and return, while what others hold lives on.

TensorFlow asks every task of its cluster when it waits for all of them, as
Keras' `fit` does at its end. So who is lost must leave the cluster; a task that
came back is a new process, which has nothing of what the old one held.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from tf_convpar.strategy.spec import Task
from tf_convpar.strategy.status import DeviceStatus
from tf_convpar.strategy.status import ask

# Seconds in which a task answers that is alive, however busy its machine is.
_ANSWER_S = 5.0


class Members:
    """The workers of a cluster, seen from its chief.

    ```python
    members = cluster.members()
    gone = members.lost()
    members.leave(gone)
    ...
    members.join(members.returned())
    ```

    Args:
        found: Devices of each worker that is there.

    Attributes:
        absent: Workers that left and have not joined again.
    """

    def __init__(self, found: Mapping[Task, tuple[DeviceStatus, ...]]) -> None:
        self._processes = {task: _process(d) for task, d in found.items()}
        self.absent: list[Task] = []
        self._whole: Any = None

    def lost(self) -> list[Task]:
        """Members that do not answer, or are other processes than they were."""
        present = [t for t in self._processes if t not in self.absent]
        answers = ask(present, _ANSWER_S, patient=False)
        return [
            task
            for task, found in answers.items()
            if isinstance(found, str)
            or _process(found) != self._processes[task]
        ]

    def returned(self) -> list[Task]:
        """Workers that left, and at whose address one answers now."""
        answers = ask(self.absent, _ANSWER_S, patient=False)
        return [t for t, found in answers.items() if not isinstance(found, str)]

    def leave(self, tasks: Iterable[Task]) -> None:
        """Makes the cluster one without these workers."""
        self.absent += tasks
        self._change()

    def join(self, tasks: Iterable[Task]) -> None:
        """Makes the cluster one with these workers again, which hold nothing.

        Raises:
            TimeoutError: One does not answer.
        """
        found = ask(tasks, _ANSWER_S)
        silent = {t: why for t, why in found.items() if isinstance(why, str)}
        if silent:
            raise TimeoutError(
                "Expected workers that answer. Received: "
                + ", ".join(f"{t}: {why}" for t, why in silent.items())
            )
        for task, devices in found.items():
            if not isinstance(devices, str):
                self._processes[task] = _process(devices)
            self.absent.remove(task)
        self._change()

    def _change(self) -> None:
        from tf_convpar._compat.tensorflow import change_cluster
        from tf_convpar._compat.tensorflow import server_def

        self._whole = self._whole or server_def()
        now = copy.deepcopy(self._whole)
        for job in list(now.cluster.job):
            for task in self.absent:
                if task.job == job.name:
                    del job.tasks[task.index]
            if not job.tasks:
                now.cluster.job.remove(job)
        change_cluster(now)


def _process(devices: tuple[DeviceStatus, ...]) -> int:
    """A number that another process at the address would not have."""
    return devices[0].incarnation
