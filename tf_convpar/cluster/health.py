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
from tf_convpar.cluster.status import connecting

# Seconds between two rounds of questions.
_EVERY_S = 1.0
# Fewest seconds without an answer after which a task hangs, and without an end
# after which a step stands still. Slow tasks get more: their usual time and so
# many spreads of it.
_LEAST_S = 5.0
_SPREADS = 10.0
# A task that still accepts connections is busy: TensorFlow answers with the
# threads that also prepare functions, which takes seconds where there are few
# processors. It counts as one that hangs after so many times the deadline.
_BUSY_TIMES = 6.0
# Number of last answers, and of last steps, that tell the usual time.
_REMEMBERED = 60


class Watch:
    """Asks tasks every second whether they are there, from a thread.

    ```python
    with Watch(lambda: {task: process.pid}, lambda task, why: process.kill()):
        ...
    ```

    Two questions in a row must stay without an answer, so that nobody is
    judged because this process itself was stopped for a while. Who answers no
    question but accepts a new connection is busy, and gets more time.

    Args:
        asked: Function that returns the tasks that should answer now, each with
            a value that tells its process from another one in its place.
        hangs: Function that is called for a task that hangs, with a sentence
            for people, in each round until the task is no longer in `asked()`.
        starting: Whether tasks may still be starting: then only one that has
            answered before can hang.
        worked: Function that returns when a task was last busy, if known: a
            busy task that does not answer does not hang.
        least_s: Function that returns the fewest seconds after which a task
            hangs; those of slow tasks may be more.
    """

    def __init__(
        self,
        asked: Callable[[], Mapping[Task, Hashable]],
        hangs: Callable[[Task, str], None],
        *,
        starting: bool = False,
        worked: Callable[[Task], float] = lambda task: 0.0,
        least_s: Callable[[Task], float] = lambda task: 0.0,
    ) -> None:
        self._asked = asked
        self._worked = worked
        self._least_s = least_s
        self._hangs = hangs
        self._starting = starting
        # The process that answered last, and when.
        self._answered: dict[Task, tuple[Hashable, float]] = {}
        self._silent: set[Task] = set()
        # Connections that last, as long as they are answered.
        self._channels: dict[Task, grpc.Channel] = {}
        self._durations: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    @property
    def silent(self) -> set[Task]:
        """Those who left the last question without an answer."""
        return self._silent

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._ask()
        for channel in self._channels.values():
            channel.close()

    def _ask(self) -> None:
        usual = deadline_s(self._durations)
        asked = self._asked()
        start = time.monotonic()
        for task, process in asked.items():
            if self._answered.get(task, (None, 0.0))[0] == process:
                continue
            self._answered.pop(task, None)
            if not self._starting:
                self._answered[task] = process, start
        # Two in a row make up the usual deadline.
        with connecting(self._silent & asked.keys()) as accepting:
            answers = ask(
                asked, usual / 2, patient=False, channels=self._channels
            )
            busy = accepting()
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
            deadline = max(self._least_s(task), usual)
            if task in busy:
                deadline *= _BUSY_TIMES
            if task in self._silent and idle_s >= deadline:
                self._report(task, silent_s)
        if not silent:
            self._durations.append(now - start)
        self._silent = silent

    def _report(self, task: Task, silent_s: float) -> None:
        # The task may have ended meanwhile.
        if self._over.is_set() or task not in self._asked():
            return
        usual = ""
        if self._durations:
            usual = (
                f", usually it takes {statistics.median(self._durations):.2f} s"
            )
        name = f"{task.job} {task.index}"
        self._hangs(
            task, f"{name} has not answered for {silent_s:.1f} s{usual}"
        )


class Steps:
    """Notes when steps begin and end, and tells whether one stands still.

    ```python
    with steps.one():
        train_step(batch)
    ```

    Several may run at a time, in threads.

    Args:
        on_step: Function that is called when a step has ended well.
    """

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        self._on_step = on_step
        self._starts: dict[object, float] = {}
        self._ended = time.monotonic()
        self._durations: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED
        )

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A step, for as long as the context lasts."""
        this, start = object(), time.monotonic()
        self._starts[this] = start
        try:
            yield
            self._durations.append(time.monotonic() - start)
            self._on_step()
        finally:
            self._ended = time.monotonic()
            del self._starts[this]

    @property
    def are_known(self) -> bool:
        """Whether a step has ended, so that the usual time is known.

        The first of a program also traces, for as long as a minute.
        """
        return bool(self._durations)

    def got_on_until(self) -> float:
        """Time up to which all steps that had begun have also ended."""
        return min(list(self._starts.values()), default=self._ended)

    def stand_still(self, least_s: float = 0.0) -> bool:
        """Whether a step takes much longer than steps usually do.

        Args:
            least_s: What no step may take, at least.
        """
        start = min(list(self._starts.values()), default=math.inf)
        deadline = max(least_s, deadline_s(self._durations))
        return time.monotonic() - start >= deadline


def deadline_s(durations: Sequence[float]) -> float:
    """Seconds after which an answer, or the end of a step, is overdue.

    It is the median of earlier durations, and ten times their spread (median
    absolute deviation), so that a few slow ones change nothing.
    """
    if not durations:
        return _LEAST_S
    usual = statistics.median(durations)
    spread = statistics.median(abs(t - usual) for t in durations)
    return max(_LEAST_S, usual + _SPREADS * spread)
