"""A child process whose output is read, and that cannot outlive this one."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import IO

import psutil

from tf_convpar.cluster import parent_death

# Share of a processor below which a process is idle. A worker that is only
# asked whether it is there takes a tenth of that.
_IDLE = 0.02
# Seconds between two looks whether one has ended that is waited for.
_LOOK_S = 0.02


def how(code: int) -> str:
    """How a process ended, by its `returncode`.

    ```python
    how(3), how(-9)  # "exit code 3", "signal SIGKILL"
    ```
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # Most of the real-time signals have no name.
        return f"signal {-code}"


class Process:
    """A child process whose output is read, and that dies with this one.

    ```python
    with Process(["echo", "hello"]) as process:
        process.wait()
    process.output  # "hello"
    ```

    The child leads a process group of its own. So a Ctrl-C in the terminal
    reaches only the parent, which decides what becomes of the child. When the
    child has ended, or the context is left, whatever else is in its group is
    killed. On Linux the kernel also kills the child when the thread that
    started it ends, so start it from a thread that lasts.

    Args:
        command: program and arguments.
        env: environment; this process's own by default.
        cwd: working directory; this process's own by default.
        stdin: standard input, as in `subprocess.Popen`; empty by default.
        on_line: function that a thread of its own calls with each line of
            output, stdout and stderr in one.
        on_end: function that the same thread calls with the exit code, after
            the last line.
        on_error_line: the same as `on_line` for stderr alone, which then does
            not go there; it may be called at the same time.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        on_line: Callable[[str], None] | None = None,
        on_end: Callable[[int], None] | None = None,
        on_error_line: Callable[[str], None] | None = None,
    ) -> None:
        self._lines: collections.deque[str] = collections.deque(maxlen=10_000)
        # Reentrant: the same thread's signal handlers take it too.
        self._reaping = threading.RLock()
        # Seconds of processors it had used when it was last looked at.
        self._used, self._looked = 0.0, time.monotonic()
        self._worked = self._looked
        self._popen = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                parent_death.__file__,
                str(os.getpid()),
            ]
            + list(command),
            env=env,
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if on_error_line else subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        pipes = (
            (self._popen.stdout, on_line, on_end),
            (self._popen.stderr, on_error_line, None),
        )
        self._readers = [
            threading.Thread(target=self._read, args=pipe, daemon=True)
            for pipe in pipes
            if pipe[0] is not None
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """`None` while it runs, then its exit code, or minus its signal."""
        with self._reaping:
            if self._popen.returncode is None:
                self._reap()
            return self._popen.returncode

    @property
    def output(self) -> str:
        """The output so far, its last 10 000 lines at most."""
        return "\n".join(self._lines.copy())

    def worked(self) -> float:
        """Time at which the process was surely busy last, and so did not hang.

        It is the time of the call before the last one that saw the process use
        processors.
        """
        now = time.monotonic()
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:  # It has ended, or is another user's.
            return self._worked
        used = times.user + times.system
        if used - self._used > _IDLE * (now - self._looked):
            self._worked = self._looked
        self._used, self._looked = used, now
        return self._worked

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the process and its output to end; returns `returncode`."""
        code = self._code(timeout_s)
        # Only a process that has left the group can still keep the pipe open.
        for reader in self._readers:
            reader.join(timeout=1.0)
        return code

    def signal(self, number: int) -> None:
        """Sends it a signal, if it still runs."""
        with self._reaping:
            if self.returncode is None:
                os.kill(self.pid, number)

    def write(self, text: str) -> None:
        """Writes to its standard input, a pipe, unless it has closed that."""
        # It may have ended, or closed its input.
        with contextlib.suppress(OSError, ValueError):
            if self._popen.stdin is not None:
                self._popen.stdin.write(text)
                self._popen.stdin.flush()

    def kill(self) -> None:
        """Kills it and its group, and waits for its end."""
        self.signal(signal.SIGKILL)
        self.wait()

    def _code(self, timeout_s: float | None = None) -> int:
        begin = time.monotonic()
        while (code := self.returncode) is None:
            passed_s = time.monotonic() - begin
            if timeout_s is not None and passed_s >= timeout_s:
                raise subprocess.TimeoutExpired(self._popen.args, timeout_s)
            time.sleep(_LOOK_S)
        return code

    def _reap(self) -> None:
        """Reaps the process if it has ended, after killing its group.

        In this order: once it is reaped, the kernel may give its number, which
        is its group's, to another process.
        """
        with contextlib.suppress(OSError):
            if hasattr(os, "waitid"):
                look = os.WEXITED | os.WNOHANG | os.WNOWAIT
                ended = os.waitid(os.P_PID, self.pid, look) is not None
            else:  # macOS before Python 3.13: in the other order, at once.
                ended = self._popen.poll() is not None
            if not ended:
                return
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.poll()

    def _read(
        self,
        pipe: IO[str],
        on_line: Callable[[str], None] | None,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        for line in pipe:
            text = line.rstrip("\n")
            self._lines.append(text)
            if on_line is not None:
                on_line(text)
        if on_end is not None:
            on_end(self._code())
