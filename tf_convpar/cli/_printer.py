"""The lines of several processes, each with its task in front."""

from __future__ import annotations

import functools
import io
import os
import signal
import sys
import threading
from collections.abc import Callable

import click

from tf_convpar.cli._shared import is_chatter

_COLOURS = ("green", "yellow", "blue", "magenta", "red", "white")


class Printer:
    """Writes the lines of several processes, with their task in front."""

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A character that the terminal has not ends no process's output.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
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
