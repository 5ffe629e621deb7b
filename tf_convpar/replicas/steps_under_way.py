"""Steps of replicas under way, and replicas that are late with them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.replica import Replica

# Seconds for which a replica is waited for in any case: messages take some.
_LEAST_S = 2.0
# Seconds between looks who is silent.
_LOOK_EVERY_S = 0.5
# What calls raise whose task, or the way to it, is lost.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError)


class StepsUnderWay:
    """Steps that replicas make by themselves, each called by a thread.

    ```python
    with under_way.threads(len(replicas)):
        for replica in replicas:
            under_way.start(replica, lambda: local.run(goal, ...))
        runs, error = under_way.ended(patience=0.25)
    ```

    Who is late, as it hangs or is lost, is not waited for. It is no longer late
    when its steps have ended (`back`), and nobody starts others until then.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._runs: dict[Replica, concurrent.futures.Future[StepsRun]] = {}
        self._late: dict[Replica, concurrent.futures.Future[StepsRun]] = {}
        self._begun = 0.0

    @contextlib.contextmanager
    def threads(self, count: int) -> Iterator[concurrent.futures.Executor]:
        """Context of calls, which waits for all that are not late."""
        self._pool = concurrent.futures.ThreadPoolExecutor(count)
        try:
            yield self._pool
        finally:
            self._pool.shutdown(wait=not self._late)
            concurrent.futures.wait(self._runs.values())
            self._runs.clear()

    def start(self, replica: Replica, steps: Callable[[], StepsRun]) -> None:
        """Lets a thread call for a replica's steps."""
        if not self._runs:
            self._begun = time.monotonic()
        self._runs[replica] = self._pool.submit(steps)

    def ended(
        self,
        patience: float,
        allowed_s: float = 0.0,
        is_silent: Callable[[Replica], bool] = lambda replica: False,
    ) -> tuple[dict[Replica, StepsRun], BaseException | None]:
        """What replicas have made that are not late; waits for them.

        Args:
            patience: What they may take longer than the first who ends, as a
                part of its time. If it has no limit, nobody is ever late.
            allowed_s: Seconds that any of them may take.
            is_silent: Whether a replica's task does not answer just now. Such
                ones may take no longer.

        Returns:
            That, and an error of other steps. It is none where a replica is
            lost and another one made its steps: who is lost is late.
        """
        runs = self._runs
        self._wait(patience, allowed_s, is_silent)
        over = {r: run for r, run in runs.items() if run.done()}
        lost = {
            replica
            for replica, run in over.items()
            if isinstance(run.exception(), _LOST)
        }
        if lost == over.keys() or math.isinf(patience):
            lost = set()
        self._late |= {
            replica: run
            for replica, run in runs.items()
            if replica in lost or replica not in over
        }
        self._runs = {}
        ended, error = {}, None
        for replica in over.keys() - lost:
            error = over[replica].exception() or error
            if not over[replica].exception():
                ended[replica] = over[replica].result()
        return ended, error

    def _wait(
        self,
        patience: float,
        allowed_s: float,
        is_silent: Callable[[Replica], bool],
    ) -> None:
        latest = math.inf
        while left := {r for r, run in self._runs.items() if not run.done()}:
            now = time.monotonic()
            if math.isinf(latest) and any(
                map(_has_stepped, self._runs.values())
            ):
                seconds = (1 + patience) * (now - self._begun)
                latest = self._begun + max(seconds, allowed_s) + _LEAST_S
            is_over = math.isfinite(latest) and all(map(is_silent, left))
            if is_over or now > latest:
                return
            concurrent.futures.wait(
                [self._runs[replica] for replica in left],
                _LOOK_EVERY_S,
                concurrent.futures.FIRST_COMPLETED,
            )

    def is_late(self, replica: Replica) -> bool:
        """Whether it is waited for no longer."""
        return replica in self._late

    def back(self) -> dict[Replica, StepsRun]:
        """Steps of those who were late, and have ended well since."""
        back = {
            replica: run.result()
            for replica, run in self._late.items()
            if run.done() and not run.exception()
        }
        for replica in back:
            del self._late[replica]
        return back

    def failed(self) -> list[Replica]:
        """Those who were late, and will not come back by themselves."""
        return [
            replica
            for replica, run in self._late.items()
            if run.done() and run.exception()
        ]

    def keep(self, replicas: Collection[Replica]) -> None:
        """Forgets the late of whom nothing more will come.

        Args:
            replicas: Those that there are now.
        """
        self._late = {
            replica: run
            for replica, run in self._late.items()
            if replica in replicas and not (run.done() and run.exception())
        }

    def wait(self) -> None:
        """Waits until those who are late have ended, or failed."""
        concurrent.futures.wait(self._late.values())


def _has_stepped(run: concurrent.futures.Future[StepsRun]) -> bool:
    if not run.done() or run.exception():
        return False
    return bool(run.result().steps)
