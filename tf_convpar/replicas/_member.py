"""A replica that meets others seldom, and what is known of it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from tf_convpar.replicas._common_weights import CommonWeights
from tf_convpar.replicas._mailbox import Mailbox
from tf_convpar.replicas._report import ReplicaReport
from tf_convpar.replicas.local_steps import LocalSteps
from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.replica import Replica

# What the newest measurement of a step's time counts at least beside earlier
# ones.
_NEWEST = 0.5


@dataclasses.dataclass
class Member:
    """A replica and what it keeps from round to round.

    Attributes:
        replica: It learns by itself.
        common: The common weights, as it has them.
        local: Its steps.
        mailbox: What it sends and gets.
        samples: From how many it has learned, since training began.
        exchanged: From how many it had, for each fragment, when that was last
            exchanged.
        passed: Its steps since it was given data.
        pace: Seconds of a step, as of late; None until one is measured.
        paced_steps: Of how many steps the newest measurement is.
        seconds: Of the calls in which it made its steps.
    """

    replica: Replica
    common: CommonWeights
    local: LocalSteps
    mailbox: Mailbox
    samples: int = 0
    exchanged: list[int] = dataclasses.field(default_factory=list)
    passed: int = 0
    pace: float | None = None
    paced_steps: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchanged = [0] * len(self.common.pieces)

    def begin_at_common(self) -> None:
        """Goes on from the common weights."""
        self.replica.weights.assign(self.common.value())
        self.exchanged = [self.samples] * len(self.common.pieces)

    def note(self, run: StepsRun) -> None:
        """Counts steps that it has run."""
        self.samples += run.steps * self.replica.batch
        self.passed += run.steps
        self.seconds.append(run.seconds)
        if run.steps:
            pace = run.seconds / run.steps
            before = pace if self.pace is None else self.pace
            # Its very first step, in which functions are prepared, hardly
            # counts beside those of a round.
            newest = run.steps / (run.steps + self.paced_steps)
            self.pace = before + max(_NEWEST, newest) * (pace - before)
            self.paced_steps = run.steps

    def learned(self, fragment: int) -> int:
        """Samples since a fragment was exchanged."""
        return self.samples - self.exchanged[fragment]

    def report(self, total: int) -> ReplicaReport:
        """Its part of so many samples."""
        return ReplicaReport(
            self.replica.device,
            len(self.seconds),
            self.samples,
            self.samples / max(1, total),
            {0: len(self.seconds)},
            statistics.median(self.seconds or [0.0]),
        )


def limit_s(
    members: Sequence[Member], goals: Sequence[int], patience: float
) -> float:
    """Seconds after which no member begins another step.

    Who is new makes nobody wait for longer than others may: its first steps
    are slow. Where all are new, as in the first round, there is no limit.

    Args:
        members: Those who step.
        goals: Steps of each.
        patience: What the slowest may take more than the fastest.
    """
    needed = [
        goal * member.pace
        for member, goal in zip(members, goals, strict=True)
        if goal and member.pace is not None
    ]
    return (1 + patience) * min(needed, default=math.inf)


def begin_at_newest(members: Sequence[Member]) -> CommonWeights:
    """Lets members whose common weights are old begin at the newest.

    They are back again, or lost the others in the midst of an exchange.

    Returns:
        The newest.
    """
    counts = [np.asarray(m.common.steps.read_value()) for m in members]
    newest = members[int(np.argmax([c.sum() for c in counts]))].common
    for member, count in zip(members, counts, strict=True):
        if (count != np.max(counts, axis=0)).any():
            member.common.take_over(newest)
            member.begin_at_common()
    return newest
