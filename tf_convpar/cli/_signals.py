"""Passes the user's signals on to the program."""

from __future__ import annotations

import math
import signal
import time

import click

from tf_convpar.cli._restarts import Restarted

# Seconds that a program may take for a last checkpoint, once told to stop.
GRACE_S = 10.0


class Signals:
    """Passes signals on to the chief, from the beginning on.

    A signal that came before there is a chief would otherwise end this process
    alone. It is kept, and passed on later. A chief that goes on after two is
    killed after some time, or with the third.
    """

    def __init__(self) -> None:
        self._chief: Restarted | None = None
        self._early: list[int] = []
        # Number of signals that the chief has had, which may have ended it.
        self._passed = 0
        self._warned = self._killed = False
        self._due = math.inf
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    @property
    def passed_on(self) -> bool:
        """Whether the chief has had a signal."""
        return self._passed > 0

    def forward_to(self, chief: Restarted) -> None:
        """Passes signals on to `chief`, those that came before at once."""
        self._chief = chief
        for number in self._early:
            self._take(number, None)

    def insist(self) -> None:
        """Kills a chief that goes on after two signals; to be called often."""
        if self._passed < 2 or self._killed or self._chief is None:
            return
        if not self._warned:
            self._warned = True
            self._due = time.monotonic() + GRACE_S
            click.echo(
                f"Told twice to stop; it is killed in {GRACE_S:g} s, or by "
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
