"""`Timeline`: a picture of some of the steps that `fit` makes."""

from __future__ import annotations

import collections
import concurrent.futures
import os
import pathlib
import statistics
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import timeline
from tf_convpar._compat.keras import print_msg
from tf_convpar.cluster.spec import Task
from tf_convpar.strategy.calls import at_end_of_call
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Tasks are recorded by one at a time, and that of a `fit` that was interrupted
# may still be at it when the next one comes to its steps.
_RECORDS = threading.Lock()
# Recordings, each of twice the time of the one before, until there are enough
# steps in one: the machine was busy, or other callbacks took long between
# them. After so many, operations without a step will do: those that run
# eagerly.
_RECORDINGS = 4


class Timeline(keras.callbacks.Callback):
    """Records who computes, sends and waits in some steps of `fit`.

    ```python
    model.fit(x, y, callbacks=[convpar.callbacks.Timeline("timeline")])
    ```

    Writes `timeline.png`, and `timeline.json` for ui.perfetto.dev. Steps that
    are recorded take a little longer; all others do not. What `Rebalance` and
    `Elastic` do is in both, at any time of the `fit`, beside what all its steps
    took. Give it before them: what comes before it is part of a step to it.

    Args:
        path: The files to write, without an ending.
        steps: Number of steps in the picture.
        after: Steps before them, in which the first traces and all connect.

    Raises:
        ValueError: A number is too small, or the model was made in no scope of
            a ConvParallelStrategy.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "timeline",
        *,
        steps: int = 3,
        after: int = 10,
    ) -> None:
        super().__init__()
        for name, value in (("steps", steps), ("after", after)):
            if value != int(value) or value < 1:
                raise ValueError(
                    f"Expected {name} to be 1 or more. Received: {value!r}."
                )
        self.path = pathlib.Path(path)
        self.steps, self.after = int(steps), int(after)
        self._seen = 0
        self._began_s = self._last = 0.0
        self._periods: collections.deque[float] = collections.deque(maxlen=9)
        self._ended = threading.Event()
        self._every_step = timeline.Counted()
        self._recording: concurrent.futures.Future[Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the tasks to record."""
        strategy = self.model.distribute_strategy
        if not isinstance(strategy, ConvParallelStrategy):
            raise ValueError(
                "Expected a model made in the scope of a ConvParallelStrategy. "
                f"Received one of {strategy!r}."
            )
        cluster = strategy.cluster
        self._tasks = None if cluster is None else cluster.tasks
        self._seen, self._last = 0, 0.0
        self._recording = None
        self._ended = threading.Event()
        # Steps that will never come are waited for by nobody.
        at_end_of_call(self._ended.set)
        self._began_s, self._every_step = time.time(), timeline.Counted()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes when a step begins."""
        # The clock of traces may be set; what steps take must not change then.
        self._begin_s, now = time.time(), time.perf_counter()
        if self._last:
            # From the begin of a step to that of the next: what is between
            # them, such as other callbacks, is in a recording as well.
            self._periods.append(now - self._last)
        self._last = now

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begins to record, when there have been enough steps."""
        self._seen += 1
        took = time.perf_counter() - self._last
        self._every_step.add(self._begin_s, self._begin_s + took)
        if self._seen == self.after:
            # The first and the last are seldom whole.
            # Low, as the first of two would be the one that traced.
            period_s = statistics.median_low(self._periods or [took])
            pool = concurrent.futures.ThreadPoolExecutor(1)
            self._recording = pool.submit(
                _record,
                self._tasks,
                (self.steps + 2) * period_s,
                self.steps,
                self._ended,
            )
            pool.shutdown(wait=False)

    def on_train_end(self, logs: Any = None) -> None:
        """Writes both files."""
        self._ended.set()
        if self._recording is None:
            self._say(f"{self._seen} steps, and {self.after} before the first")
            return
        try:
            recording = self._recording.result()
            events = timeline.noted(self._began_s)
            course = timeline.Course(self._every_step.entries, events)
            timeline.write(
                recording, self.path, steps=self.steps, course=course
            )
        except (
            RuntimeError,
            ValueError,
            OSError,
            tf.errors.OpError,  # Something else of this process records.
        ) as error:
            self._say(str(error))
            return
        print_msg(f"Timeline: {self.path}.png, and {self.path}.json.")

    def _say(self, why: str) -> None:
        # No reason to lose a training.
        warnings.warn(
            f"No timeline in {self.path}: {why}.", RuntimeWarning, stacklevel=1
        )


def _record(
    tasks: Sequence[Task] | None,
    time_s: float,
    steps: int,
    ended: threading.Event,
) -> timeline.Recording:
    """A recording with `steps` whole steps, or the one with the most."""
    most: tuple[int, int, timeline.Recording] | None = None
    with _RECORDS:
        attempt = 0
        while True:
            attempt += 1
            recording = timeline.record(tasks, time_s)
            whole = sum(s.kind == timeline.STEP for s in recording.spans)
            if most is None or (whole, len(recording.spans)) > most[:2]:
                most = whole, len(recording.spans), recording
            eager = attempt >= _RECORDINGS and most[1] and not most[0]
            if whole >= steps or eager or ended.is_set():
                return most[2]
            time_s *= 2
