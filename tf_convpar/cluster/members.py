"""Tasks that leave a cluster and return, while what others hold lives on.

TensorFlow asks every task of its cluster when it waits for all of them, as
Keras' `fit` does at its end. So who is lost must leave the cluster; a task that
came back is a new process, which has nothing of what the old one held.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import logging
import threading
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar.cluster import launches
from tf_convpar.cluster.connections import Peer
from tf_convpar.cluster.connections import cut
from tf_convpar.cluster.connections import peers_of
from tf_convpar.cluster.health import Steps
from tf_convpar.cluster.health import Watch
from tf_convpar.cluster.reach import Reach
from tf_convpar.cluster.reach import apart
from tf_convpar.cluster.reach import least
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import DeviceStatus
from tf_convpar.cluster.status import ask

# Seconds in which a task answers that is alive, however busy its machine is.
_ANSWER_S = 5.0
# Seconds between looks for connections to a task that hangs: TensorFlow makes
# new ones.
_CUT_EVERY_S = 0.05
# Seconds between looks whether steps end, and for what answers at once.
_LOOK_EVERY_S = 1.0
_LOG = logging.getLogger("tf_convpar")


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
        chief: The task of this process.
        found: Devices of each worker that is there.
        absent: Workers that are not there yet.

    Attributes:
        absent: Workers that left and have not joined again, or not yet.
        steps: To be told of each step.
    """

    def __init__(
        self,
        chief: Task,
        found: Mapping[Task, tuple[DeviceStatus, ...]],
        absent: Sequence[Task] = (),
    ) -> None:
        self._chief = chief
        self._processes = {task: _process(d) for task, d in found.items()}
        self._peers = {task: _peers(task) for task in (*found, *absent)}
        self._hang: set[Task] = set()
        self.absent: list[Task] = list(absent)
        self.steps = Steps(launches.tell)
        # Who left because another one was not reached, and is asked for it.
        self._parted: dict[Task, Reach | None] = {}
        self._parting = threading.Lock()
        self._whole: Any = None
        # Processes that another launch has started.
        self._strangers: set[int] = set()
        # What is asked of those who left.
        self._asking: concurrent.futures.Future[Any] | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Calls to a worker that hangs fail soon, as to one that died.

        Without this they wait for 80 s or for ever: until its machine is back
        on the network, or somebody kills it.
        """
        over = threading.Event()
        launches.tell()

        def go() -> None:
            while not over.wait(_CUT_EVERY_S):
                for task in list(self._hang):
                    cut(self._peers[task])

        def look() -> None:
            while not over.wait(_LOOK_EVERY_S):
                if self.steps.stand_still():
                    self._part(over)
                    # It may only be a long one.
                    over.wait(_ANSWER_S)

        cutting = threading.Thread(target=go, daemon=True)
        with Watch(
            self._present,
            self._give_up,
            worked=lambda task: self.steps.got_on_until(),
        ):
            cutting.start()
            threading.Thread(target=look, daemon=True).start()
            try:
                yield
            finally:
                over.set()
                cutting.join()
                self._hang.clear()

    def _present(self) -> dict[Task, int]:
        return {
            t: p for t, p in self._processes.items() if t not in self.absent
        }

    def _give_up(self, task: Task, why: str) -> None:
        if task not in self._hang:
            _LOG.warning("%s; it is waited for no longer.", why)
            self._hang.add(task)

    def lost(self) -> list[Task]:
        """Members that do not answer, or are other processes than they were.

        And those that hung, though they may answer again. If there are none,
        those without which all others reach one another.
        """
        present, hang = self._present(), set(self._hang)
        answers = ask(present.keys() - hang, _ANSWER_S, patient=False)
        gone = [
            task
            for task in present
            if task in hang
            or isinstance(found := answers[task], str)
            or _process(found) != self._processes[task]
        ]
        if not gone:
            self._part()
            gone = [task for task in present if task in self._hang]
        return gone

    def _part(self, over: threading.Event | None = None) -> None:
        """Gives up as few tasks as can be, so that others reach all others."""
        with self._parting:
            present = [t for t in self._present() if t not in self._hang]
            pairs = apart(self._chief, present, _ANSWER_S)
            if over is not None and pairs and not self.steps.are_known:
                # Nothing has failed, and the first step may only be tracing,
                # with all processors: one answer that is late proves nothing.
                again = apart(self._chief, present, _ANSWER_S)
                pairs = [pair for pair in pairs if pair in again]
            if over is not None and over.is_set():
                return
            # Somebody may have left meanwhile.
            pairs = [pair for pair in pairs if not {*pair} & {*self.absent}]
            for task in least(pairs, present):
                a, b = next(pair for pair in pairs if task in pair)
                self._parted[task] = None
                self._give_up(
                    task,
                    f"{_named(a)} and {_named(b)} do not reach one another, "
                    f"so {_named(task)} is left out",
                )

    def returned(self, wait: bool = True) -> list[Task] | None:
        """Workers that left, and at whose address one answers now.

        Args:
            wait: Whether to wait until that is known, which takes seconds where
                a machine is silent. Without that, None says it is not known
                yet: ask again.
        """
        if self._asking is None:
            pool = concurrent.futures.ThreadPoolExecutor(1)
            self._asking = pool.submit(self._back, list(self.absent))
            pool.shutdown(wait=False)
        if not (wait or self._asking.done()):
            return None
        back, self._asking = self._asking.result(), None
        return [task for task in back if task in self.absent]

    def _back(self, absent: list[Task]) -> list[Task]:
        answers = ask(absent, _ANSWER_S, patient=False)
        back = list[Task]()
        for task in absent:
            found = answers[task]
            if isinstance(found, str) or _process(found) in self._strangers:
                continue
            if task not in self._parted or self._is_reached(task, back):
                back.append(task)
        return back

    def _is_reached(self, task: Task, back: list[Task]) -> bool:
        """Whether one that left for that reason reaches all, and they it.

        A question stays open until it is answered: who is asked again and again
        would have as many threads that wait.
        """
        others = [self._chief, *self._present(), *back]
        pairs = [(task, other) for other in others]
        pairs += [(other, task) for other in others if other != self._chief]
        reach = self._parted[task]
        if reach is None or reach.pairs != pairs:
            if reach is not None:
                reach.close()
            reach = self._parted[task] = Reach(pairs)
        answers = reach.answers(_LOOK_EVERY_S).values()
        if all(answers) or False in answers:
            reach.close()
            self._parted[task] = None
        return all(answers)

    def enter(self) -> None:
        """Makes the cluster of this process alone one with who was found.

        Raises:
            RuntimeError: Another launch has started one of them.
        """
        present = self._present()
        if not present:
            return
        self._change()
        if found := self._of_others(present):
            self.leave(found)
            raise RuntimeError(launches.refusal(found))

    def _of_others(self, tasks: Iterable[Task]) -> list[Task]:
        """Those of them that another launch has started: none of ours."""
        found = launches.strangers(tasks)
        self._strangers |= {self._processes[task] for task in found}
        return found

    def leave(self, tasks: Iterable[Task]) -> None:
        """Makes the cluster one without these workers."""
        self.absent += tasks
        # TensorFlow takes leave of them too, and would wait for an answer.
        self._hang |= set(self.absent)
        self._change()
        self._hang -= set(self.absent)

    def join(self, tasks: Iterable[Task]) -> None:
        """Makes the cluster one with these workers again, which hold nothing.

        Raises:
            TimeoutError: One does not answer, or another launch has started it.
            tf.errors.OpError: One is lost meanwhile. None has joined.
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
            self._parted.pop(task, None)
        try:
            self._change()
            strangers = self._of_others(found)
        except Exception:
            self.leave(found)
            raise
        if strangers:
            self.leave(found)
            _LOG.warning("%s", launches.refusal(strangers))
            raise TimeoutError(launches.refusal(strangers))

    def _change(self) -> None:
        from tf_convpar._compat.tensorflow import change_cluster
        from tf_convpar._compat.tensorflow import server_def

        self._whole = self._whole or self._with_all(server_def())
        now = copy.deepcopy(self._whole)
        for job in list(now.cluster.job):
            for task in self.absent:
                if task.job == job.name:
                    del job.tasks[task.index]
            if not job.tasks:
                now.cluster.job.remove(job)
        change_cluster(now)

    def _with_all(self, server_def: Any) -> Any:
        """A cluster that has those as well who have not been there yet."""
        jobs = {job.name: job for job in server_def.cluster.job}
        for task in self._peers:
            if task.job not in jobs:
                jobs[task.job] = server_def.cluster.job.add(name=task.job)
            jobs[task.job].tasks[task.index] = task.address
        return server_def


def _peers(task: Task) -> set[Peer]:
    # Now, because who knows its name may be silent later.
    try:
        return peers_of(task.address)
    except OSError:
        return set()


def _named(task: Task) -> str:
    return f"{task.job} {task.index}"


def _process(devices: tuple[DeviceStatus, ...]) -> int:
    """A number that another process at the address would not have."""
    return devices[0].incarnation
