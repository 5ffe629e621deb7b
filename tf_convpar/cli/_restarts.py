"""Starts processes again, ends those that hang, and sends heartbeats."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

import click

from tf_convpar.cluster.health import Watch
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.process import how
from tf_convpar.cluster.server import HEARTBEAT_EVERY_S
from tf_convpar.cluster.spec import Task

# Seconds before a worker is started again: twice as many each time.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0


class Restarted:
    """A process that may be started again.

    Args:
        process: The process.
        again: Function that starts another in its place.
        restarts: How often it may be started again.

    Attributes:
        process: The process that runs, or ran last.
    """

    def __init__(
        self, process: Process, again: Callable[[], Process], restarts: int
    ) -> None:
        self.process = process
        self._start_another = again
        self._restarts = restarts
        self._used = 0
        self._due: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.process.returncode is not None

    @property
    def spent(self) -> bool:
        """Whether it has been started again as often as it may."""
        return self._used == self._restarts

    def how(self) -> str:
        """How it ended, after its last output has been printed."""
        return how(self.process.wait())

    def start(self) -> None:
        """Starts the process again; kills it first if it still runs."""
        self.process.kill()
        self.process = self._start_another()
        self._due = None

    def revive(self, name: str) -> bool:
        """Starts it again when it is time; False if it may not be restarted."""
        if not self._restarts:
            return False
        if self._due is None:
            wait = min(_FIRST_WAIT_S * 2**self._used, _LONGEST_WAIT_S)
            self._due = time.monotonic() + wait
            says = f"{name} ended with {self.how()}; "
            if self.spent:
                self._due = math.inf
                says += f"it is not started again after {self._used} times."
            else:
                says += f"starting it again in {wait:g} s."
            click.echo(says, err=True)
        elif time.monotonic() >= self._due:
            self.start()
            self._used += 1
        return True


def watch(
    workers: Mapping[str, Restarted],
    addresses: Mapping[str, Task],
    worked: Callable[[Restarted], float] = lambda worker: 0.0,
) -> Watch:
    """Returns a watch that ends workers that hang.

    Args:
        workers: Workers by their names.
        addresses: Tasks of the workers, by the same names.
        worked: Function that returns when a worker was last busy. A worker that
            was busy lately does not hang.
    """
    by_task = {task: workers[name] for name, task in addresses.items()}

    def end(task: Task, why: str) -> None:
        click.echo(f"{why}; ending it.", err=True)
        by_task[task].process.kill()

    return Watch(
        lambda: {t: w.process.pid for t, w in by_task.items() if not w.ended},
        end,
        starting=True,
        worked=lambda task: worked(by_task[task]),
    )


@contextlib.contextmanager
def heartbeats(workers: Collection[Restarted]) -> Iterator[None]:
    """Tells workers on other machines that this one is there."""
    over = threading.Event()

    def go() -> None:
        while not over.wait(HEARTBEAT_EVERY_S):
            for worker in workers:
                worker.process.write("\n")

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
