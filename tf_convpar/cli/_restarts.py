"""Processes that are started again, and those that are watched or kept."""

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
        process: Its process.
        again: Starts another in its place.
        restarts: How often that may happen.

    Attributes:
        process: The one that runs, or ran last.
    """

    def __init__(
        self, process: Process, again: Callable[[], Process], restarts: int
    ) -> None:
        self.process = process
        self._again = again
        self._restarts = restarts
        self._used = 0
        self._due: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it does not run."""
        return self.process.returncode is not None

    @property
    def spent(self) -> bool:
        """Whether it is not started again."""
        return self._used == self._restarts

    def how(self) -> str:
        """How it ended, after its last output has been printed."""
        return how(self.process.wait())

    def start(self) -> None:
        """Starts it again, in the place of what runs, if anything does."""
        self.process.kill()
        self.process = self._again()
        self._due = None

    def revive(self, name: str) -> bool:
        """Whether it need not end everything; starts it when it is time."""
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
    """Ends workers that hang.

    Args:
        workers: By their names.
        addresses: Of the same names.
        worked: When one was last busy. Such a one does not hang.
    """
    of = {task: workers[name] for name, task in addresses.items()}

    def end(task: Task, why: str) -> None:
        click.echo(f"{why}; ending it.", err=True)
        of[task].process.kill()

    return Watch(
        lambda: {t: w.process.pid for t, w in of.items() if not w.ended},
        end,
        starting=True,
        worked=lambda task: worked(of[task]),
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
