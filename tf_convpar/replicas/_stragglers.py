"""Replicas that are late for a round, which goes on without them."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Iterable
from typing import Any

from tf_convpar.cluster.joining import members
from tf_convpar.machines import task_of
from tf_convpar.replicas._kept_rounds import KeptRounds
from tf_convpar.replicas._member import Member
from tf_convpar.replicas._member import begin_at_newest
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.steps_under_way import StepsUnderWay

# Rounds, and seconds at most, for which who does not answer is not taken for
# lost.
_AWAY_ROUNDS, _AWAY_S = 2, 30.0


class Stragglers(KeptRounds):
    """A method that leaves a replica out of rounds for which it is late.

    It hangs, is cut off, or lost. Where it comes to the end of its steps, it
    begins at the common weights, and what it learned is lost; where it does not
    it is waited for no longer from the next epoch on, as `Survivors` does.

    Args:
        model: As for `Replicated`, as are all others.
        patience: The longest that a replica makes others wait for its steps, as
            a part of their time.
        **kwargs: As for `KeptRounds`.
    """

    def __init__(
        self,
        model: Any,
        *given: Any,
        patience: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, *given, **kwargs)
        self.patience = patience
        self._steps_under_way = StepsUnderWay()
        # Whose metrics are still of an earlier epoch.
        self._has_old_metrics: set[Replica] = set()
        # What metrics of an epoch begin with.
        self._zero_metrics: Any = None
        # Seconds for which others do without one that does not answer.
        self._away_s = 0.0
        # Whether the next round's calls are the first ones of their functions.
        self._is_first = True

    @property
    def _present(self) -> list[Replica]:
        is_late = self._steps_under_way.is_late
        return [replica for replica in self.replicas if not is_late(replica)]

    def _taking_part(self) -> list[Member]:
        """All who are not late."""
        return [self._members[replica] for replica in self._present]

    def _ended(
        self, limit: float
    ) -> tuple[dict[Replica, StepsRun], BaseException | None]:
        """What those have made who are not late.

        Args:
            limit: Seconds after which they begin no step any more.
        """
        # TensorFlow prepares functions when they are first called, one after
        # another, for as long as it takes.
        patience = math.inf if self._is_first else self.patience
        # Whoever does not answer while others step holds nobody up.
        self._excuse(self.replicas if math.isfinite(patience) else ())
        step_s = max(member.pace or 0.0 for member in self._members.values())
        runs, error = self._steps_under_way.ended(
            patience,
            limit + step_s if math.isfinite(limit) else step_s,
            self._is_silent,
        )
        self._is_first = False
        round_s = max((run.seconds for run in runs.values()), default=0.0)
        self._away_s = min(_AWAY_ROUNDS * round_s, _AWAY_S)
        self._excuse(filter(self._steps_under_way.is_late, self.replicas))
        return runs, error

    def _excuse(self, replicas: Iterable[Replica]) -> None:
        """Gives time to the tasks of some replicas, and to no others."""
        cluster_members = members()
        if cluster_members:
            cluster_members.patience_s = {
                task_of(replica.device): self._away_s for replica in replicas
            }

    def _begin_anew(self) -> None:
        """All calls are the first ones, of functions that are made anew."""
        self._steps_under_way.keep(self.replicas)
        self._is_first = True
        self._excuse(filter(self._steps_under_way.is_late, self.replicas))

    def _reset_metrics(self, zero: Any) -> None:
        # Where a replica steps: to do it here would wait for one that hangs.
        self._has_old_metrics = set(self.replicas)
        self._zero_metrics = zero

    def _start(self, member: Member, *limits: Any) -> None:
        """Lets a member step; `limits` are those of `LocalSteps.run`."""
        replica = member.replica
        is_reset = replica in self._has_old_metrics
        self._has_old_metrics.discard(replica)

        def run() -> StepsRun:
            if is_reset:
                replica.metrics.assign(self._zero_metrics)
            return member.local.run(*limits)

        self._steps_under_way.start(replica, run)

    def _let_late_begin(self) -> None:
        """Who was late, and has ended its steps, begins at the newest."""
        back = self._steps_under_way.back()
        for replica, run in back.items():
            self._members[replica].passed += run.steps
        self._let_begin(back)

    def _let_begin(self, back: Collection[Replica]) -> None:
        self._has_old_metrics.update(back)
        if back:
            self.centre = begin_at_newest(self._taking_part())

    def _is_silent(self, replica: Replica) -> bool:
        """Whether its task does not answer just now, but may yet."""
        cluster_members = members()
        silent = cluster_members.silent() if cluster_members else set()
        task = task_of(replica.device)
        return any((t.job, t.index) == task for t in silent)

    def _take_back(self, source: Source) -> None:
        # One that is lost leaves when it is back: to change the cluster, and
        # what is made of its members, once is enough.
        failed = [
            replica
            for replica in self._steps_under_way.failed()
            if not self._is_silent(replica)
        ]
        if failed and self._leave_lost_out():
            self._place(source)
        elif failed:
            # Their tasks are what they were: a connection failed.
            self._steps_under_way.keep(self.replicas)
            self._let_begin(failed)
        super()._take_back(source)
