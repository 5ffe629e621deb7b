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
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence

import click

from tf_convpar.cli._going_on import GoingOn
from tf_convpar.cli._shared import is_chatter
from tf_convpar.cluster.health import Watch
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.process import how
from tf_convpar.cluster.server import HEARTBEAT_EVERY_S
from tf_convpar.cluster.spec import Task

_POLL_S = 0.1
# Seconds that a program may take for a last checkpoint, once told to stop.
_GRACE_S = 10.0
# Seconds before a worker is started again: twice as many each time.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
# Seconds for a question over ssh.
_ANSWER_S = 20.0
_COLOURS = ("green", "yellow", "blue", "magenta", "red", "white")


def local(
    tasks: int,
    program: Sequence[str],
    threads: int | None,
    restarts: int = 0,
    last_step: Callable[[], int | None] = lambda: None,
) -> int:
    """Runs a program as the chief of `tasks - 1` workers on this machine.

    Args:
        tasks: The chief and its workers.
        program: Command of the chief.
        threads: Most threads for one operation on a worker.
        restarts: How often each process that ends early is started again:
            a worker, or the chief if a signal killed it, and then the workers
            with it. With 0, everything ends with the first, unless the
            program goes on without it.
        last_step: Gives when the program has made its last step, if it has said
            so.

    Returns:
        The exit code for the shell.
    """
    signals = _Signals()
    printer = _Printer()
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(
            local_workers(
                tasks - 1,
                threads=threads,
                wait=False,  # The program's strategy waits for the workers.
                on_line=lambda task, line: printer.line(
                    f"{task.job} {task.index}", line
                ),
                on_error_line=lambda task, line: printer.line(
                    f"{task.job} {task.index}", line, err=True
                ),
            )
        )

        def start() -> Process:
            process = Process(
                program,
                # Python would hold back lines that it writes to a pipe.
                env={"PYTHONUNBUFFERED": "1", **cluster.env()},
                stdin=None,
                on_line=printer.of("chief"),
                on_error_line=printer.of("chief", err=True),
            )
            return stack.enter_context(process)

        workers = {
            f"worker {index}": _Task(
                process, functools.partial(cluster.start_again, index), restarts
            )
            for index, process in enumerate(cluster.workers)
        }
        chief = _Task(start(), start, restarts)
        addresses = dict(zip(workers, cluster.cluster.others, strict=True))
        # On other machines their processes are not seen.
        with _watch(
            workers,
            addresses,
            worked=lambda worker: worker.process.worked(),
        ):
            return _until_the_end(chief, workers, signals, GoingOn(last_step))


def over_ssh(
    commands: Sequence[tuple[str, str, str]],
    tasks: Mapping[str, Task],
    restarts: int = 0,
    forwards: Mapping[str, Sequence[str]] | None = None,
    last_step: str = "",
) -> int:
    """Runs a shell command on each host, over ssh.

    Args:
        commands: Name, host and shell command of each, the chief's last.
        tasks: Workers by their names.
        restarts: As for `local`.
        forwards: More options for the ssh of each.
        last_step: Shell command that prints, on the chief's host, when the
            program has made its last step, or null.

    Returns:
        The exit code for the shell.
    """
    signals = _Signals()
    printer = _Printer()
    with contextlib.ExitStack() as stack:
        *others, own = commands

        def start(task: str, host: str, text: str) -> Process:
            # The first ends a connection whose other end is silent for 15 s.
            # -tt: the program ends with its connection, in most cases. A worker
            # ends without heartbeats, of which a terminal would make lines.
            # BatchMode: without a terminal no password can be asked for.
            alive = ["-o", "ServerAliveInterval=5"]
            terminal = "-tt" if task == own[0] else "-T"
            options = [*alive, terminal, "-o", "BatchMode=yes"]
            options += (forwards or {}).get(task, ())
            process = Process(
                ["ssh", *options, host, text],
                stdin=subprocess.DEVNULL if task == own[0] else subprocess.PIPE,
                on_line=printer.of(task),
                on_error_line=printer.of(task, err=True),
            )
            return stack.enter_context(process)

        workers = {
            command[0]: _Task(
                start(*command), functools.partial(start, *command), restarts
            )
            for command in others
        }
        chief = _Task(start(*own), functools.partial(start, *own), restarts)
        look = functools.partial(_last_step, own[1], last_step)
        with _watch(workers, tasks), _heartbeats(workers.values()):
            return _until_the_end(chief, workers, signals, GoingOn(look))


def _last_step(host: str, text: str) -> int | None:
    """What a command prints on a host; None where nothing is known."""
    words = ["ssh", "-o", "ConnectTimeout=5", "-T", "-o", "BatchMode=yes"]
    found = list[str]()
    with (
        Process(
            [*words, host, text],
            on_line=found.append,
            # What ssh and the host say besides.
            on_error_line=lambda line: None,
        ) as process,
        contextlib.suppress(subprocess.TimeoutExpired, ValueError, IndexError),
    ):
        process.wait(_ANSWER_S)
        return int(found[-1])
    return None


class _Task:
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


def _watch(
    workers: Mapping[str, _Task],
    addresses: Mapping[str, Task],
    worked: Callable[[_Task], float] = lambda worker: 0.0,
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
def _heartbeats(workers: Collection[_Task]) -> Iterator[None]:
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


def _until_the_end(
    chief: _Task,
    workers: dict[str, _Task],
    signals: "_Signals",
    going_on: GoingOn,
) -> int:
    signals.forward_to(chief)
    while True:
        signals.insist()
        # The program is looked at first: a worker that ends after it is no
        # failure.
        code = chief.process.returncode
        if _killed(code) and not chief.spent and not signals.passed_on:
            # It finds none of what an earlier one has left with them.
            if chief.revive("chief") and not chief.ended:
                for worker in workers.values():
                    worker.start()
            time.sleep(_POLL_S)
            continue
        ended = {name: w for name, w in workers.items() if w.ended}
        if code is None:
            ended = {
                name: worker
                for name, worker in ended.items()
                if not worker.revive(name)
                and not going_on.without(name, worker.how)
            }
        if code is None and not ended:
            time.sleep(_POLL_S)
            continue
        if code != 0:
            for name, worker in ended.items():
                if not going_on.knows(name):
                    click.echo(
                        f"{name} ended with {worker.how()} before the "
                        "program did; stopping everything.",
                        err=True,
                    )
        if code is None:
            _stop(chief.process)
            return 1
        chief.process.wait()
        return code if code >= 0 else 128 - code


class _Signals:
    """Passes signals on to the chief, from the beginning on.

    A signal that came before there is a chief would otherwise end this process
    alone. It is kept, and passed on later. A chief that goes on after two is
    killed after some time, or with the third.
    """

    def __init__(self) -> None:
        self._chief: _Task | None = None
        self._early: list[int] = []
        # How many the chief has had, which may have ended it.
        self._passed = 0
        self._warned = self._killed = False
        self._due = math.inf
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    @property
    def passed_on(self) -> bool:
        """Whether the chief has had one."""
        return self._passed > 0

    def forward_to(self, chief: _Task) -> None:
        """Passes signals on to `chief`, those that came before at once."""
        self._chief = chief
        for number in self._early:
            self._take(number, None)

    def insist(self) -> None:
        """Kills a chief that goes on, and says so; to be called often."""
        if self._passed < 2 or self._killed or self._chief is None:
            return
        if not self._warned:
            self._warned = True
            self._due = time.monotonic() + _GRACE_S
            click.echo(
                f"Told twice to stop; it is killed in {_GRACE_S:g} s, or by "
                "the next Ctrl-C.",
                err=True,
            )
        if self._passed > 2 or time.monotonic() >= self._due:
            self._killed = True
            click.echo("The program did not stop; killed.", err=True)
            self._chief.process.kill()

    def _take(self, number: int, frame: object) -> None:
        if self._chief is None:
            self._early.append(number)
        else:
            self._passed += 1
            self._chief.process.signal(number)


def _stop(process: Process) -> None:
    process.signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def _killed(code: int | None) -> bool:
    """Whether a signal ended it, which ssh tells by large numbers."""
    return code is not None and (code < 0 or code > 128)


class _Printer:
    """Writes the lines of several processes, with their task in front."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._colours: dict[str, str] = {}

    def of(self, task: str, err: bool = False) -> Callable[[str], None]:
        """Returns a function that writes lines of a task."""
        return functools.partial(self.line, task, err=err)

    def line(self, task: str, text: str, err: bool = False) -> None:
        """Writes a line of a task, in the task's colour on a terminal.

        Args:
            task: Name of the task.
            text: The line.
            err: Whether the task wrote it to its stderr.
        """
        if err and is_chatter(text):
            return
        with self._lock:
            colour = self._colours.setdefault(
                task, _COLOURS[len(self._colours) % len(_COLOURS)]
            )
            try:
                click.echo(click.style(f"[{task}] ", fg=colour) + text, err=err)
            except OSError:
                # The reader of our output has gone, as in `convpar launch ...
                # | head`. Stop the program as its own SIGPIPE would, and go on
                # to read what it writes.
                gone = sys.stderr if err else sys.stdout
                os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())
                os.kill(os.getpid(), signal.SIGTERM)
