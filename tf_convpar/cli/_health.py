"""Ends workers that hang: they run, and answer nobody.

The chief cannot: a call of TensorFlow to such a worker does not come back until
somebody kills it. Then it fails at once, as for any lost worker.
"""

from __future__ import annotations

import collections
import statistics
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import click

from tf_convpar.strategy.process import Process
from tf_convpar.strategy.spec import Task
from tf_convpar.strategy.status import ask

# Seconds between two questions.
_EVERY_S = 1.0
# A worker that has not answered for so many seconds hangs: at least these, and
# more where answers have been slow, as on machines with more to do than cores.
_LEAST_S = 5.0
_SPREADS = 10.0
# Answers from which is known what is usual.
_REMEMBERED = 60


class Watch:
    """Asks workers whether they are there, from a thread, and kills who is not.

    ```python
    with Watch({"worker 0": task}, lambda name: processes[name]):
        ...
    ```

    Two questions in a row must stay without an answer, so that nobody is
    killed because this process itself was stopped for a while.

    Args:
        tasks: Workers by their names.
        process: Gives the process that runs as a worker now.
    """

    def __init__(
        self, tasks: Mapping[str, Task], process: Callable[[str], Process]
    ) -> None:
        self._tasks = dict(tasks)
        self._process = process
        # The process that answered last, and when, by name. One that has never
        # answered may still be starting.
        self._answered: dict[str, tuple[Process, float]] = {}
        self._silent: set[str] = set()
        self._took: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> Watch:
        if self._tasks:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()

    def _go(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """Asks everybody once."""
        deadline = deadline_s(self._took)
        asked = {name: self._process(name) for name in self._tasks}
        start = time.monotonic()
        # Two in a row make up the deadline.
        answers = ask(self._tasks.values(), deadline / 2, patient=False)
        took = time.monotonic() - start
        silent = set()
        for name, task in self._tasks.items():
            process = asked[name]
            if not isinstance(answers[task], str):
                self._answered[name] = process, start + took
                continue
            last, at = self._answered.get(name, (None, 0.0))
            if last is not process or process.returncode is not None:
                continue
            silent.add(name)
            if name in self._silent and start + took - at >= deadline:
                self._end(name, process, start + took - at)
        if not silent:
            self._took.append(took)
        self._silent = silent

    def _end(self, name: str, process: Process, silent_s: float) -> None:
        if self._over.is_set():
            return
        usual = statistics.median(self._took)
        click.echo(
            f"{name} has not answered for {silent_s:.1f} s, usually it takes "
            f"{usual:.2f} s; ending it.",
            err=True,
        )
        process.kill()


def deadline_s(took: Sequence[float]) -> float:
    """Seconds without an answer after which a worker hangs.

    The median of what answers have taken, and ten times their spread (median
    absolute deviation), so that a few slow ones change nothing.
    """
    if not took:
        return _LEAST_S
    usual = statistics.median(took)
    spread = statistics.median(abs(t - usual) for t in took)
    return max(_LEAST_S, usual + _SPREADS * spread)
