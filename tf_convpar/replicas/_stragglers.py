"""Replicas that are late for a round, which goes on without them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tf_convpar.cluster.joining import members
from tf_convpar.replicas._data import Source
from tf_convpar.replicas._kept_rounds import KeptRounds
from tf_convpar.replicas._local_steps import Made
from tf_convpar.replicas._member import Member
from tf_convpar.replicas._member import begin_at_newest
from tf_convpar.replicas._outer_rounds import OuterRounds
from tf_convpar.replicas._replica import Replica
from tf_convpar.replicas._steps_under_way import StepsUnderWay
from tf_convpar.replicas._wire import Wire


class Stragglers(KeptRounds):
    """A method that leaves a replica out of rounds for which it is late.

    It hangs, is cut off, or lost. Where it comes to the end of its steps, it
    begins at the common weights, and what it learned is lost; where it does not
    it is waited for no longer from the next epoch on, as `Survivors` does.

    Args:
        model: As for `Replicated`, as are all others.
        patience: The longest that a replica makes others wait for its steps, as
            a part of their time.
        wire: How differences travel.
        **kwargs: As for `KeptRounds`.
    """

    def __init__(
        self,
        model: Any,
        *given: Any,
        patience: float,
        wire: Wire,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *given, **kwargs)
        self.patience = patience
        self._wire = wire
        self._steps_under_way = StepsUnderWay()
        # Of all replicas, and of those who were present when others were late.
        self._exchanges: dict[tuple[Replica, ...], OuterRounds] = {}

    @property
    def _present(self) -> list[Replica]:
        is_late = self._steps_under_way.is_late
        return [replica for replica in self.replicas if not is_late(replica)]

    def _taking_part(self) -> list[Member]:
        """All who are not late."""
        return [self._members[replica] for replica in self._present]

    def _exchange_of(self, replicas: Sequence[Replica]) -> OuterRounds:
        """That of some replicas."""
        key = tuple(replicas)
        if key not in self._exchanges:
            taking_part = [self._members[replica] for replica in key]
            self._exchanges[key] = OuterRounds(taking_part, self._wire)
        return self._exchanges[key]

    def _ended(self) -> tuple[dict[Replica, Made], BaseException | None]:
        """What those have made who are not late."""
        made, error = self._steps_under_way.ended(self.patience)
        found = members()
        if found and math.isfinite(self.patience):
            # Others do without who hangs. It may be back in the next round.
            found.patience_s = max(
                (own.seconds for own in made.values()), default=0.0
            )
        return made, error

    def _let_late_begin(self) -> None:
        """Who was late, and has ended its steps, begins at the newest."""
        back = self._steps_under_way.back()
        for replica, made in back.items():
            self._members[replica].passed += made.steps
            replica.metrics.assign(self._zero_metrics)
        if back:
            self.centre = begin_at_newest(self._taking_part())

    def _take_back(self, source: Source) -> None:
        error = self._steps_under_way.failed()
        if error:
            raise error
        super()._take_back(source)
