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
    """A step that is waited for, or that was made.

    Attributes:
        last: When the last one was made before.
        until: When it is waited for no longer.
        look: When to look again.
        made: Whether it was made.
    """

    last: int
    until: float
    look: float
    made: bool = False


class GoingOn:
    """Whether a program goes on without workers that have ended.

    Args:
        last_step: Gives when it has made its last step, by a clock of its own;
            None for one that has not said so.
    """

    def __init__(self, last_step: Callable[[], int | None]) -> None:
        self._last_step = last_step
        self._waited: dict[str, _Waited] = {}

    def without(self, name: str, how: Callable[[], str]) -> bool:
        """Whether it does, or still may; says which.

        Args:
            name: Of a worker that has ended.
            how: Gives how.
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
        if waited.made or now < waited.look:
            return True
        waited.look = now + _LOOK_S
        if self._last_step() not in (None, waited.last):
            waited.made = True
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
        """Whether a worker has ended without which it goes on, or may."""
        return name in self._waited
