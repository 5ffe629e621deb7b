"""Whether a program goes on without workers that have ended.

One with `callbacks.Elastic`, or with replicas, says when it has made a step. If
it has made one after a worker ended, it goes on without that worker, and is
left alone. One that has never said so loses its model with the first worker: it
ends with an error, or it hangs, and is ended with everything else.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import click

# Seconds within which a program makes a step without a worker, if it can: it
# may trace anew, and measure algorithms, and a single step may be a long one.
_STEP_S = 600.0
# Seconds between two looks, which may take a connection of ssh.
_LOOK_S = 2.0


@dataclasses.dataclass
class _Waited:
    """The wait for a step after a worker has ended.

    Attributes:
        last: Time of the last step before.
        until: Time at which the wait is over.
        look: Time at which to look again.
        stepped: Whether there was such a step.
    """

    last: int
    until: float
    look: float
    stepped: bool = False


class ProgramLiveness:
    """Whether a program goes on without workers that have ended.

    Args:
        last_step: Function that returns the time of the program's last step, by
            a clock of its own; None if the program has not told of any.
    """

    def __init__(self, last_step: Callable[[], int | None]) -> None:
        self._last_step = last_step
        self._waited: dict[str, _Waited] = {}

    def without(self, name: str, how: Callable[[], str]) -> bool:
        """Whether it goes on without a worker, or still may; prints which.

        Args:
            name: Name of a worker that has ended.
            how: Function that says how it ended.
        """
        now = time.monotonic()
        waited = self._waited.get(name)
        if waited is None:
            last = self._last_step()
            if last is None:
                return False
            self._waited[name] = _Waited(last, now + _STEP_S, now + _LOOK_S)
            click.echo(
                f"{name} ended with {how()}; the program may go on without it: "
                f"it is left alone if it makes a step within {_STEP_S:g} s.",
                err=True,
            )
            return True
        if waited.stepped or now < waited.look:
            return True
        waited.look = now + _LOOK_S
        if self._last_step() not in (None, waited.last):
            waited.stepped = True
            click.echo(f"The program makes steps without {name}.", err=True)
        elif now >= waited.until:
            click.echo(
                f"The program has made no step for {_STEP_S:g} s without "
                f"{name}.",
                err=True,
            )
            del self._waited[name]
            return False
        return True

    def knows(self, name: str) -> bool:
        """Whether the program goes on, or may, without this ended worker."""
        return name in self._waited
