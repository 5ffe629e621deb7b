"""Runs workers and the chief's program, and ends them together."""

import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence

import click

from tf_convpar.strategy.local_cluster import local_workers
from tf_convpar.strategy.process import Process

_POLL_S = 0.1
# Seconds that a program may take for a last checkpoint, once told to stop.
_GRACE_S = 10.0
# Seconds before a worker is started again: twice as many each time.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_COLOURS = ("green", "yellow", "blue", "magenta", "red", "white")


def local(
    tasks: int,
    program: Sequence[str],
    threads: int | None,
    restarts: int = 0,
) -> int:
    """Runs a program as the chief of `tasks - 1` workers on this machine.

    Args:
        tasks: The chief and its workers.
        program: Command of the chief.
        threads: Most threads for one operation on a worker.
        restarts: How often a worker that ends early is started again. With 0,
            everything ends with it.

    Returns:
        The exit code for the shell.
    """
    signals = _Signals()
    printer = _Printer()
    with (
        local_workers(
            tasks - 1,
            threads=threads,
            wait=False,  # The program's strategy waits for the workers.
            on_line=lambda task, line: printer.line(
                f"{task.job} {task.index}", line
            ),
        ) as cluster,
        Process(
            program,
            # Python would hold back lines that it writes to a pipe.
            env={"PYTHONUNBUFFERED": "1", **cluster.env()},
            stdin=None,
            on_line=printer.of("chief"),
        ) as chief,
    ):
        workers = {
            f"worker {index}": _Worker(
                process, functools.partial(cluster.start_again, index), restarts
            )
            for index, process in enumerate(cluster.workers)
        }
        signals.forward_to(chief)
        return _until_the_end(chief, workers)


def over_ssh(
    commands: Sequence[tuple[str, str, str]], restarts: int = 0
) -> int:
    """Runs a shell command on each host, over ssh.

    Args:
        commands: Task, host and shell command of each, the chief's last.
        restarts: As for `local`.

    Returns:
        The exit code for the shell.
    """
    signals = _Signals()
    printer = _Printer()
    with contextlib.ExitStack() as stack:

        def start(task: str, host: str, text: str) -> Process:
            # -tt: the command ends with its connection. BatchMode: without a
            # terminal no password can be asked for.
            command = ["ssh", "-tt", "-o", "BatchMode=yes", host, text]
            process = Process(command, on_line=printer.of(task))
            return stack.enter_context(process)

        *others, own = commands
        workers = {
            command[0]: _Worker(
                start(*command), functools.partial(start, *command), restarts
            )
            for command in others
        }
        chief = start(*own)
        signals.forward_to(chief)
        return _until_the_end(chief, workers)


class _Worker:
    """A worker that may be started again.

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

    def revive(self, name: str) -> bool:
        """Whether it need not end everything; starts it when it is time."""
        if not self._restarts:
            return False
        if self._due is None:
            wait = min(_FIRST_WAIT_S * 2**self._used, _LONGEST_WAIT_S)
            self._due = time.monotonic() + wait
            says = f"{name} ended with {_describe(self.process.wait())}; "
            if self._used == self._restarts:
                self._due = math.inf
                says += f"it is not started again after {self._used} times."
            else:
                says += f"starting it again in {wait:g} s."
            click.echo(says, err=True)
        elif time.monotonic() >= self._due:
            self.process = self._again()
            self._used += 1
            self._due = None
        return True


def _until_the_end(chief: Process, workers: dict[str, _Worker]) -> int:
    while True:
        # The program is looked at first: a worker that ends after it is no
        # failure.
        code = chief.returncode
        ended = {name: w for name, w in workers.items() if w.ended}
        if code is None:
            ended = {n: w for n, w in ended.items() if not w.revive(n)}
        if code is None and not ended:
            time.sleep(_POLL_S)
            continue
        if code != 0:
            for name, worker in ended.items():
                # Until its last output has been printed.
                found = _describe(worker.process.wait())
                click.echo(
                    f"{name} ended with {found} before the "
                    "program did; stopping everything.",
                    err=True,
                )
        if code is None:
            _stop(chief)
            return 1
        chief.wait()
        return code if code >= 0 else 128 - code


class _Signals:
    """Passes signals on to the chief, from the beginning on.

    A signal that came before there is a chief would otherwise end this process
    alone. It is kept, and passed on later.
    """

    def __init__(self) -> None:
        self._chief: Process | None = None
        self._early: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def forward_to(self, chief: Process) -> None:
        """Passes signals on to `chief`, those that came before at once."""
        self._chief = chief
        for number in self._early:
            chief.signal(number)

    def _take(self, number: int, frame: object) -> None:
        if self._chief is None:
            self._early.append(number)
        else:
            self._chief.signal(number)


def _stop(process: Process) -> None:
    process.signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def _describe(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


class _Printer:
    """Writes the lines of several processes, with their task in front."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._colours: dict[str, str] = {}

    def of(self, task: str) -> Callable[[str], None]:
        """Returns a function that writes lines of a task."""
        return lambda line: self.line(task, line)

    def line(self, task: str, text: str) -> None:
        """Writes a line of a task, in the task's colour on a terminal."""
        with self._lock:
            colour = self._colours.setdefault(
                task, _COLOURS[len(self._colours) % len(_COLOURS)]
            )
            try:
                click.echo(click.style(f"[{task}] ", fg=colour) + text)
            except OSError:
                # The reader of our output has gone, as in `convpar launch ...
                # | head`. Stop the program as its own SIGPIPE would, and go on
                # to read what it writes.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                os.kill(os.getpid(), signal.SIGTERM)
