"""Runs workers and the chief's program, and ends them together."""

import contextlib
import functools
import signal
import subprocess
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.cli._exit_code import exit_code
from tf_convpar.cli._printer import Printer
from tf_convpar.cli._program_liveness import ProgramLiveness
from tf_convpar.cli._restarts import Restarted
from tf_convpar.cli._restarts import heartbeats
from tf_convpar.cli._restarts import watch
from tf_convpar.cli._signals import Signals
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.cluster.process import Process
from tf_convpar.cluster.spec import Task

# A line of a program's host, before all others, with the program's number.
NUMBER = "convpar-process"
# Seconds for a question over ssh.
_ANSWER_S = 20.0


def local(
    tasks: int,
    program: Sequence[str],
    threads: int | None,
    restarts: int = 0,
    last_step: Callable[[], int | None] = lambda: None,
) -> int:
    """Runs a program as the chief of `tasks - 1` workers on this machine.

    Args:
        tasks: Number of tasks: the chief and its workers.
        program: Command of the chief.
        threads: Most threads for one operation on a worker.
        restarts: How often each process that ends early is started again:
            a worker, or the chief if a signal killed it, and then the workers
            with it. With 0, everything ends with the first, unless the
            program goes on without it.
        last_step: Function that returns the time of the program's last step;
            None if the program has not told of any.

    Returns:
        The exit code for the shell.
    """
    signals = Signals()
    printer = Printer()
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
            f"worker {index}": Restarted(
                process, functools.partial(cluster.start_again, index), restarts
            )
            for index, process in enumerate(cluster.workers)
        }
        chief = Restarted(start(), start, restarts)
        addresses = dict(zip(workers, cluster.cluster.others, strict=True))
        # On other machines their processes are not seen.
        with watch(
            workers,
            addresses,
            worked=lambda worker: worker.process.worked(),
        ):
            return exit_code(
                chief, workers, signals, ProgramLiveness(last_step)
            )


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
    signals = Signals()
    printer = Printer()
    with contextlib.ExitStack() as stack:
        *others, chief_command = commands

        def start(task: str, host: str, text: str) -> Process:
            # The first ends a connection whose other end is silent for 15 s.
            # -tt: the program ends with its connection, in most cases. A worker
            # ends without heartbeats, of which a terminal would make lines.
            # BatchMode: without a terminal no password can be asked for.
            alive = ["-o", "ServerAliveInterval=5"]
            terminal = "-tt" if task == chief_command[0] else "-T"
            options = [*alive, terminal, "-o", "BatchMode=yes"]
            options += (forwards or {}).get(task, ())
            if task == chief_command[0]:
                process: Process = _Remote(options, host, text, printer, task)
            else:
                process = Process(
                    ["ssh", *options, host, text],
                    stdin=subprocess.PIPE,
                    on_line=printer.of(task),
                    on_error_line=printer.of(task, err=True),
                )
            return stack.enter_context(process)

        workers = {
            command[0]: Restarted(
                start(*command), functools.partial(start, *command), restarts
            )
            for command in others
        }
        chief = Restarted(
            start(*chief_command),
            functools.partial(start, *chief_command),
            restarts,
        )
        look = functools.partial(_last_step, chief_command[1], last_step)
        with watch(workers, tasks), heartbeats(workers.values()):
            return exit_code(chief, workers, signals, ProgramLiveness(look))


class _Remote(Process):
    """A program on another host, which gets the signals of this one.

    ssh hands none on: it ends, and the program with it, without a moment for a
    last checkpoint. So another connection takes them to the program's number.

    Args:
        options: Options of ssh.
        host: Host of the program.
        text: Shell command, which says `NUMBER` and its number first.
        printer: Printer of all other lines.
        task: Name of the task in front of them.
    """

    def __init__(
        self,
        options: Sequence[str],
        host: str,
        text: str,
        printer: Printer,
        task: str,
    ) -> None:
        self._host = host
        self._number_there = ""
        self._print = printer.of(task)
        self._messengers: list[Process] = []
        super().__init__(
            ["ssh", *options, host, text],
            on_line=self._take_line,
            on_error_line=printer.of(task, err=True),
        )

    def _take_line(self, line: str) -> None:
        word, _, number = line.strip().partition(" ")
        if not self._number_there and word == NUMBER and number.isdecimal():
            self._number_there = number
        else:
            self._print(line)

    def signal(self, number: int) -> None:
        """Sends the program a signal; SIGKILL ends the connection."""
        if number == signal.SIGKILL or not self._number_there:
            super().signal(number)
        elif self.returncode is None:
            words = [*_ASK, self._host, f"kill -{number} {self._number_there}"]
            self._messengers.append(Process(words))


# A connection for one command.
_ASK = ("ssh", "-o", "ConnectTimeout=5", "-T", "-o", "BatchMode=yes")


def _last_step(host: str, text: str) -> int | None:
    """The number that a command prints on a host; None if it prints none."""
    lines = list[str]()
    with (
        Process(
            [*_ASK, host, text],
            on_line=lines.append,
            # What ssh and the host say besides.
            on_error_line=lambda line: None,
        ) as process,
        contextlib.suppress(subprocess.TimeoutExpired, ValueError, IndexError),
    ):
        process.wait(_ANSWER_S)
        return int(lines[-1])
    return None
