"""Tasks that leave a cluster and return, while the others keep their state.

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
from tf_convpar.cluster.reach import cut_off_pairs
from tf_convpar.cluster.reach import vertex_cover
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
        answered: Devices of each worker that has answered.
        absent: Workers that have not answered yet.

    Attributes:
        absent: Workers that left and have not joined again, or not yet.
        steps: The chief's steps, which it must tell of.
        patience_s: For some workers (job and index) seconds without an answer
            that are no reason to give them up, as others work meanwhile. It is
            empty when `watched` begins.
    """

    def __init__(
        self,
        chief: Task,
        answered: Mapping[Task, tuple[DeviceStatus, ...]],
        absent: Sequence[Task] = (),
    ) -> None:
        self._chief = chief
        self._processes = {task: _process(d) for task, d in answered.items()}
        self._peers = {task: _peers(task) for task in (*answered, *absent)}
        self._hanging: set[Task] = set()
        self.absent: list[Task] = list(absent)
        self.steps = Steps(launches.tell)
        self.patience_s: dict[tuple[str, int], float] = {}
        self._watch: Watch | None = None
        # Tasks that left because they and others did not reach one another, and
        # the question whether they do again.
        self._separated: dict[Task, Reach | None] = {}
        self._separating = threading.Lock()
        self._full_cluster: Any = None
        # Numbers of processes that another launch has started.
        self._strangers: set[int] = set()
        # The answers of those that left, once they are known.
        self._asking: concurrent.futures.Future[Any] | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Lets calls to a worker that hangs fail soon, as to one that died.

        Without this they wait for 80 s or for ever: until its machine is back
        on the network, or somebody kills it.
        """
        over = threading.Event()
        self.patience_s = {}
        launches.tell()

        def keep_cutting() -> None:
            while not over.wait(_CUT_EVERY_S):
                for task in list(self._hanging):
                    cut(self._peers[task])

        def look() -> None:
            while not over.wait(_LOOK_EVERY_S):
                longest = max(self.patience_s.values(), default=0.0)
                if self.steps.stand_still(longest):
                    self._separate(over)
                    # It may only be a long one.
                    over.wait(_ANSWER_S)

        cutting = threading.Thread(target=keep_cutting, daemon=True)
        with Watch(
            self._present,
            self._give_up,
            worked=lambda task: self.steps.got_on_until(),
            least_s=lambda t: self.patience_s.get((t.job, t.index), 0.0),
        ) as self._watch:
            cutting.start()
            threading.Thread(target=look, daemon=True).start()
            try:
                yield
            finally:
                over.set()
                cutting.join()
                self._hanging.clear()

    def silent(self) -> set[Task]:
        """Workers that do not answer just now, but are not given up yet.

        Nobody, if all are silent: then it is this process that was not there.
        """
        silent = self._watch.silent if self._watch else set()
        if silent == self._present().keys():
            return set()
        return silent - self._hanging

    def _present(self) -> dict[Task, int]:
        return {
            t: p for t, p in self._processes.items() if t not in self.absent
        }

    def _give_up(self, task: Task, why: str) -> None:
        if task not in self._hanging:
            _LOG.warning("%s; it is waited for no longer.", why)
            self._hanging.add(task)

    def lost(self) -> list[Task]:
        """Members that do not answer, hung, or are other processes than before.

        If there are none, those without which all others reach one another.
        """
        present, hang = self._present(), set(self._hanging)
        answers = ask(present.keys() - hang, _ANSWER_S, patient=False)
        gone = [
            task
            for task in present
            if task in hang
            or isinstance(answer := answers[task], str)
            or _process(answer) != self._processes[task]
        ]
        if not gone:
            self._separate()
            gone = [task for task in present if task in self._hanging]
        return gone

    def _separate(self, over: threading.Event | None = None) -> None:
        """Gives up few tasks, without which all others reach one another."""
        with self._separating:
            present = [t for t in self._present() if t not in self._hanging]
            pairs = cut_off_pairs(self._chief, present, _ANSWER_S)
            if over is not None and pairs and not self.steps.are_known:
                # Nothing has failed, and the first step may only be tracing,
                # with all processors: one answer that is late proves nothing.
                again = cut_off_pairs(self._chief, present, _ANSWER_S)
                pairs = [pair for pair in pairs if pair in again]
            if over is not None and over.is_set():
                return
            # Tasks may have left meanwhile.
            pairs = [pair for pair in pairs if not {*pair} & {*self.absent}]
            for task in vertex_cover(pairs, present):
                a, b = next(pair for pair in pairs if task in pair)
                self._separated[task] = None
                self._give_up(
                    task,
                    f"{_named(a)} and {_named(b)} do not reach one another, "
                    f"so {_named(task)} is left out",
                )

    def returned(self, wait_s: float | None = None) -> list[Task] | None:
        """Workers that left, and at whose address a worker answers now.

        Args:
            wait_s: Seconds to wait until that is known, which takes some where
                a machine is silent; None for as long as it takes. Where it is
                not known by then, the result is None: ask again.
        """
        asked_before = self._asking is not None
        if self._asking is None:
            pool = concurrent.futures.ThreadPoolExecutor(1)
            self._asking = pool.submit(self._find_returned, list(self.absent))
            pool.shutdown(wait=False)
        try:
            back = self._asking.result(wait_s)
        except concurrent.futures.TimeoutError:
            return None
        self._asking = None
        if asked_before and wait_s and not back:
            # That answer is to an earlier question: a worker may be back now.
            return self.returned(wait_s)
        return [task for task in back if task in self.absent]

    def _find_returned(self, absent: list[Task]) -> list[Task]:
        answers = ask(absent, _ANSWER_S, patient=False)
        back = list[Task]()
        for task in absent:
            answer = answers[task]
            if isinstance(answer, str) or _process(answer) in self._strangers:
                continue
            if task not in self._separated or self._is_reached(task, back):
                back.append(task)
        return back

    def _is_reached(self, task: Task, back: list[Task]) -> bool:
        """Whether a separated task reaches all others now, and they reach it.

        A question stays open until it is answered: who is asked again and again
        would have as many threads that wait.
        """
        others = [self._chief, *self._present(), *back]
        pairs = [(task, other) for other in others]
        pairs += [(other, task) for other in others if other != self._chief]
        reach = self._separated[task]
        if reach is None or reach.pairs != pairs:
            if reach is not None:
                reach.close()
            reach = self._separated[task] = Reach(pairs)
        answers = reach.answers(_LOOK_EVERY_S).values()
        if all(answers) or False in answers:
            reach.close()
            self._separated[task] = None
        return all(answers)

    def enter(self) -> None:
        """Adds the workers that answered to the cluster of the chief alone.

        Raises:
            RuntimeError: Another launch has started one of them.
        """
        present = self._present()
        if not present:
            return
        self._change()
        if strangers := self._find_strangers(present):
            self.leave(strangers)
            raise RuntimeError(launches.refusal(strangers))

    def _find_strangers(self, tasks: Iterable[Task]) -> list[Task]:
        """The tasks that another launch has started; notes their processes."""
        strangers = launches.strangers(tasks)
        self._strangers |= {self._processes[task] for task in strangers}
        return strangers

    def leave(self, tasks: Iterable[Task]) -> None:
        """Removes workers from the cluster."""
        self.absent += tasks
        # TensorFlow takes leave of them too, and would wait for an answer.
        self._hanging |= set(self.absent)
        self._change()
        self._hanging -= set(self.absent)

    def join(self, tasks: Iterable[Task]) -> None:
        """Adds workers to the cluster again, which hold nothing.

        Raises:
            TimeoutError: One does not answer, or another launch has started it.
            tf.errors.OpError: One is lost meanwhile. None has joined.
        """
        answers = ask(tasks, _ANSWER_S)
        silent = {t: why for t, why in answers.items() if isinstance(why, str)}
        if silent:
            raise TimeoutError(
                "Expected workers that answer. Received: "
                + ", ".join(f"{t}: {why}" for t, why in silent.items())
            )
        for task, devices in answers.items():
            if not isinstance(devices, str):
                self._processes[task] = _process(devices)
            self.absent.remove(task)
            self._separated.pop(task, None)
        try:
            self._change()
            strangers = self._find_strangers(answers)
        except Exception:
            self.leave(answers)
            raise
        if strangers:
            self.leave(answers)
            _LOG.warning("%s", launches.refusal(strangers))
            raise TimeoutError(launches.refusal(strangers))

    def _change(self) -> None:
        from tf_convpar._compat.tensorflow import change_cluster
        from tf_convpar._compat.tensorflow import server_def

        self._full_cluster = self._full_cluster or self._with_all(server_def())
        now = copy.deepcopy(self._full_cluster)
        for job in list(now.cluster.job):
            for task in self.absent:
                if task.job == job.name:
                    del job.tasks[task.index]
            if not job.tasks:
                now.cluster.job.remove(job)
        change_cluster(now)

    def _with_all(self, server_def: Any) -> Any:
        """The cluster, with the workers that have not answered yet as well."""
        jobs = {job.name: job for job in server_def.cluster.job}
        for task in self._peers:
            if task.job not in jobs:
                jobs[task.job] = server_def.cluster.job.add(name=task.job)
            jobs[task.job].tasks[task.index] = task.address
        return server_def


def _peers(task: Task) -> set[Peer]:
    # Resolved early: the server for names may be silent later.
    try:
        return peers_of(task.address)
    except OSError:
        return set()


def _named(task: Task) -> str:
    return f"{task.job} {task.index}"


def _process(devices: tuple[DeviceStatus, ...]) -> int:
    """A number that tells this process from another one at its address."""
    return devices[0].incarnation
