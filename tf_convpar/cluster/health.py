"""Tells which tasks hang: they run, and answer nobody.

TensorFlow cannot tell: a call to such a task, or to a machine that left the
network, waits for a minute and more, or for ever.
"""

from __future__ import annotations

import collections
import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import grpc

from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.status import ask

# Seconds between two questions.
_EVERY_S = 1.0
# A task that has not answered for so many seconds hangs, and a step that has
# not ended is looked into: at least these, and more where they have been slow,
# as on machines with more to do than cores.
_LEAST_S = 5.0
_SPREADS = 10.0
# Answers, and steps, from which is known what is usual.
_REMEMBERED = 60


class Watch:
    """Asks tasks every second whether they are there, from a thread.

    ```python
    with Watch(lambda: {task: process.pid}, lambda task, why: process.kill()):
        ...
    ```

    Two questions in a row must stay without an answer, so that nobody is
    judged because this process itself was stopped for a while.

    Args:
        asked: Gives the tasks that should answer now, each with something that
            another process in its place would not have.
        hangs: Is called for a task that hangs, with a sentence for people, at
            each question until it is no longer asked.
        starting: Whether a task may still be starting, which takes its time:
            it must have answered once.
        worked: Gives when a task has done something else, if that is known: a
            busy one that answers nobody does not hang.
    """

    def __init__(
        self,
        asked: Callable[[], Mapping[Task, Hashable]],
        hangs: Callable[[Task, str], None],
        *,
        starting: bool = False,
        worked: Callable[[Task], float] = lambda task: 0.0,
    ) -> None:
        self._asked = asked
        self._worked = worked
        self._hangs = hangs
        self._starting = starting
        # The process that answered last, and when.
        self._answered: dict[Task, tuple[Hashable, float]] = {}
        self._silent: set[Task] = set()
        # Connections that last, as long as they are answered.
        self._channels: dict[Task, grpc.Channel] = {}
        self._took: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _go(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._look()
        for channel in self._channels.values():
            channel.close()

    def _look(self) -> None:
        deadline = deadline_s(self._took)
        asked = self._asked()
        start = time.monotonic()
        for task, process in asked.items():
            if self._answered.get(task, (None, 0.0))[0] == process:
                continue
            self._answered.pop(task, None)
            if not self._starting:
                self._answered[task] = process, start
        # Two in a row make up the deadline.
        answers = ask(
            asked, deadline / 2, patient=False, channels=self._channels
        )
        worked = {task: self._worked(task) for task in asked}
        now = time.monotonic()
        silent = set()
        for task, process in asked.items():
            if not isinstance(answers[task], str):
                self._answered[task] = process, now
                continue
            if task not in self._answered:
                continue
            silent.add(task)
            silent_s = now - self._answered[task][1]
            idle_s = min(silent_s, now - worked[task])
            if task in self._silent and idle_s >= deadline:
                self._say(task, silent_s)
        if not silent:
            self._took.append(now - start)
        self._silent = silent

    def _say(self, task: Task, silent_s: float) -> None:
        # What was asked about may have ended meanwhile.
        if self._over.is_set() or task not in self._asked():
            return
        usual = ""
        if self._took:
            usual = f", usually it takes {statistics.median(self._took):.2f} s"
        name = f"{task.job} {task.index}"
        self._hangs(
            task, f"{name} has not answered for {silent_s:.1f} s{usual}"
        )


class Steps:
    """When steps began and ended, so that one that stands still is seen.

    ```python
    with steps.one():
        train_step(batch)
    ```

    Several may run at a time, in threads.

    Args:
        told: Is called when one has ended well.
    """

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self._told = told
        self._begun: dict[object, float] = {}
        self._ended = time.monotonic()
        self._took: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED
        )

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A step, for as long as the context lasts."""
        this, start = object(), time.monotonic()
        self._begun[this] = start
        try:
            yield
            self._took.append(time.monotonic() - start)
            self._told()
        finally:
            self._ended = time.monotonic()
            del self._begun[this]

    @property
    def are_known(self) -> bool:
        """Whether one has ended, so that it is known what is usual.

        The first of a program also traces, for as long as a minute.
        """
        return bool(self._took)

    def got_on_until(self) -> float:
        """Until when all steps that had begun also ended."""
        return min(list(self._begun.values()), default=self._ended)

    def stand_still(self) -> bool:
        """Whether one takes much longer than steps usually do."""
        start = min(list(self._begun.values()), default=math.inf)
        return time.monotonic() - start >= deadline_s(self._took)


def deadline_s(took: Sequence[float]) -> float:
    """Seconds after which an answer, or the end of a step, is overdue.

    The median of what they have taken, and ten times their spread (median
    absolute deviation), so that a few slow ones change nothing.
    """
    if not took:
        return _LEAST_S
    usual = statistics.median(took)
    spread = statistics.median(abs(t - usual) for t in took)
    return max(_LEAST_S, usual + _SPREADS * spread)
