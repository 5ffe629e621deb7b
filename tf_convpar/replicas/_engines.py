"""Methods' steps: in rounds, as replicas arrive, or in turn."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Generator
from typing import Any

import numpy as np

from tf_convpar.replicas._arrivals import Arrival
from tf_convpar.replicas._arrivals import Arrivals
from tf_convpar.replicas._arrivals import Protocol
from tf_convpar.replicas._method import Method
from tf_convpar.replicas._report import Report
from tf_convpar.replicas._report import report
from tf_convpar.replicas._rounds import Rounds
from tf_convpar.replicas.data import Source


class Synchronous(Method):
    """A step is a round of all replicas."""

    _waits = True

    @abc.abstractmethod
    def _rounds(self) -> Rounds:
        """The method's rounds."""

    def _make(self) -> None:
        self._engine = self._rounds()

    def _restart(self) -> None:
        self._engine.restart()

    def _steps(
        self, steps: int, source: Source
    ) -> Generator[tuple[int, Any], None, None]:
        # As many in one call as the model was compiled for.
        most = int(self.model.steps_per_execution or 1)
        for first in range(0, steps, most):
            rounds = min(most, steps - first)
            data = [
                [source.batch(r) for r in self.replicas] for _ in range(rounds)
            ]
            yield rounds, self._engine.run(self._eta(), data)


class Asynchronous(Method):
    """A step is one replica's, whichever comes next.

    Attributes:
        arrivals: Who arrived, in order, since the first epoch of `fit`.
    """

    _locked = True
    packed = True

    @abc.abstractmethod
    def _protocol(self) -> Protocol:
        """What replicas and the centre do."""

    def _per_step(self) -> int:
        each = super()._per_step() // len(self.replicas)
        return max(1, each) * self._steps_each()

    def _steps_each(self) -> int:
        """Steps of a replica for each message."""
        return 1

    def report(self) -> Report:
        """Each replica's share of the samples and staleness, since `fit`."""
        return report(
            self.devices,
            [r.batch * self._steps_each() for r in self.replicas],
            self.arrivals,
        )

    def _make(self) -> None:
        self._engine = Arrivals(
            self.replicas,
            self._there(),
            self._protocol(),
            self.chief,
            self._locked,
            self.packed,
        )
        self.arrivals: list[Arrival] = []

    def _restart(self) -> None:
        self._engine.restart()
        self.arrivals = []

    def _note(self, arrival: Arrival) -> None:
        # Metrics' states, which may be large, would fill the memory.
        self.arrivals.append(dataclasses.replace(arrival, metrics=None))

    def _trace(self, source: Source) -> None:
        self._engine.trace(
            self._eta(), [source.example(r) for r in self.replicas]
        )

    def _steps(
        self, steps: int, source: Source
    ) -> Generator[tuple[int, Any], None, None]:
        self._trace(source)
        states = _States(self)
        running = self._engine.running(
            self._eta, lambda i: source.batch(self.replicas[i])
        )
        try:
            with running:
                for _ in range(steps):
                    arrival = running.next()
                    self._note(arrival)
                    yield 1, states.after(arrival)
        finally:
            # Who was under way when the epoch ended has arrived as well.
            for arrival in running.rest():
                self._note(arrival)


class InTurn(Asynchronous):
    """A step is one replica's, in the order of their numbers."""

    def _steps(
        self, steps: int, source: Source
    ) -> Generator[tuple[int, Any], None, None]:
        self._trace(source)
        states = _States(self)
        for _ in range(steps):
            index = len(self.arrivals) % len(self.replicas)
            arrival = self._engine.one(
                index, self._eta(), lambda i: source.batch(self.replicas[i])
            )
            self._note(arrival)
            yield 1, states.after(arrival)


class _States:
    """The sum of the last known states of all replicas' metrics."""

    def __init__(self, method: Method) -> None:
        self._last = [
            np.asarray(r.metrics.read_value()) for r in method.replicas
        ]

    def after(self, arrival: Arrival) -> Any:
        """The sum with what a replica has brought."""
        self._last[arrival.replica] = arrival.metrics
        return sum(self._last)
