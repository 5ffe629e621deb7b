"""The exchange of replicas that meet seldom: one fragment of the weights.

    D_i = (Wc - W^i) of the fragment        sent
    D   = sum_i (b_i / b) D_i               the outer gradient, on all of them
    Wc  <- outer optimizer's step with D    received
    W^i <- m W^i + (1 - m) Wc

Algorithm 1 of DiLoCo (arXiv 2311.08105, with `m = 0`), algorithm 2 of
Streaming DiLoCo (arXiv 2501.18512). `b_i` are the samples that a replica has
learned from since the fragment was last exchanged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.replicas._all_reduce import AllReduce
from tf_convpar.replicas._common_weights import CommonWeights
from tf_convpar.replicas._local_steps import LocalSteps
from tf_convpar.replicas._local_steps import Made
from tf_convpar.replicas._replica import Replica
from tf_convpar.replicas._wire import Wire

# What the newest measurement of a step's time counts beside earlier ones.
_NEWEST = 0.5


@dataclasses.dataclass
class Member:
    """A replica and what it keeps from round to round.

    Attributes:
        replica: It learns by itself.
        common: The common weights, as it has them.
        local: Its steps.
        samples: From how many it has learned, since training began.
        exchanged: From how many it had, for each fragment, when that was last
            exchanged.
        passed: Its steps since it was given data.
        pace: Seconds of a step, as of late; None until one is measured.
        seconds: Of the calls in which it made its steps.
    """

    replica: Replica
    common: CommonWeights
    local: LocalSteps
    samples: int = 0
    exchanged: list[int] = dataclasses.field(default_factory=list)
    passed: int = 0
    pace: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchanged = [0] * len(self.common.pieces)

    def begin_at_common(self) -> None:
        """Goes on from the common weights."""
        self.replica.weights.assign(self.common.value())
        self.exchanged = [self.samples] * len(self.common.pieces)

    def note(self, made: Made) -> None:
        """Counts steps that it has made."""
        self.samples += made.steps * self.replica.batch
        self.passed += made.steps
        self.seconds.append(made.seconds)
        if made.steps:
            pace = made.seconds / made.steps
            before = pace if self.pace is None else self.pace
            self.pace = before + _NEWEST * (pace - before)

    def learned(self, fragment: int) -> int:
        """Samples since a fragment was exchanged."""
        return self.samples - self.exchanged[fragment]


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


@dataclasses.dataclass(frozen=True)
class Sent:
    """A fragment on its way.

    Attributes:
        fragment: Its number.
        samples: From how many each had learned when it was sent.
    """

    fragment: int
    samples: list[int]


class OuterRounds:
    """The exchange of fragments between members.

    ```python
    sent = rounds.sent(fragment)
    rounds.travel(sent)  # may run beside members' steps
    rounds.received(sent, eta=0.7, kept=0.0)
    ```

    What lies between these calls is in variables on the members' devices:
    results of a function would come to the chief.

    Args:
        members: Those who take part.
        wire: How the differences travel.
    """

    def __init__(self, members: Sequence[Member], wire: Wire) -> None:
        self.members = list(members)
        common = members[0].common
        devices = [m.replica.device for m in members]
        self._reduce = AllReduce(devices, common.length, wire)
        # What each has for all others, and the mean that it gets.
        self._outboxes = [
            [
                self._zeros(device, self._reduce.size(j), wire)
                for j in range(len(devices))
            ]
            for device in devices
        ]
        self._means = [self._zeros(i, common.length) for i in devices]
        # What rounding has left: of a member's own differences, and of the
        # sums that it makes for all.
        self._own: list[list[list[tf.Variable]]] = []
        self._sums: list[list[tf.Variable]] = []
        fragments = 0 if wire.is_exact else len(common.pieces)
        for _ in range(fragments):
            self._own.append(
                [
                    [
                        self._zeros(device, self._reduce.size(j))
                        for j in range(len(devices))
                    ]
                    for device in devices
                ]
            )
            self._sums.append(
                [
                    self._zeros(device, self._reduce.size(j))
                    for j, device in enumerate(devices)
                ]
            )
        self._cut = tf.function(self._cut_in_graph, autograph=False)
        self._mean = tf.function(self._mean_in_graph, autograph=False)
        self._step = tf.function(self._step_in_graph, autograph=False)

    def trace(self, fragment: int) -> None:
        """Makes the functions of a fragment's exchange, if they are not."""
        scalar = tf.TensorSpec([], tf.float32)
        counts = tf.TensorSpec([len(self.members)], tf.float32)
        self._cut.get_concrete_function(fragment)
        self._mean.get_concrete_function(counts, fragment)
        self._step.get_concrete_function(scalar, scalar, fragment)

    def sent(self, fragment: int) -> Sent:
        """Takes the members' differences, as they are now."""
        with step():
            self._cut(fragment).numpy()
        return Sent(fragment, [m.samples for m in self.members])

    def travel(self, sent: Sent) -> None:
        """Brings the outer gradient to each member's device."""
        counts = np.asarray(
            [
                now - member.exchanged[sent.fragment]
                for member, now in zip(self.members, sent.samples, strict=True)
            ],
            "float32",
        )
        counts = tf.constant(counts / max(1.0, float(counts.sum())))
        with step():
            self._mean(counts, sent.fragment).numpy()

    def received(self, sent: Sent, eta: float, kept: float) -> None:
        """Steps the common weights, and moves the members to them.

        Args:
            sent: What has travelled.
            eta: The outer learning rate.
            kept: How much a member keeps of its own weights (`m`).
        """
        rates = (tf.constant(eta, tf.float32), tf.constant(kept, tf.float32))
        with step():
            self._step(*rates, sent.fragment).numpy()
        for member, now in zip(self.members, sent.samples, strict=True):
            member.exchanged[sent.fragment] = now

    def nbytes(self, member: int) -> int:
        """Bytes that a member sends for one fragment."""
        return self._reduce.nbytes(member)

    def _zeros(
        self, device: str, values: int, wire: Wire | None = None
    ) -> tf.Variable:
        with tf.device(device):
            zeros = tf.zeros([values])
            return tf.Variable(wire.encode(zeros) if wire else zeros)

    def _cut_in_graph(self, fragment: int) -> tf.Tensor:
        reduce = self._reduce
        for i, member in enumerate(self.members):
            with tf.device(member.replica.device):
                before = member.common.piece(fragment)
                _, now, _ = self._around(member, fragment)
                difference = tf.cast(before - now, tf.float32)
                left = None if reduce.wire.is_exact else self._own[fragment][i]
                messages = reduce.cut(difference, left)
                for place, message in zip(
                    self._outboxes[i], messages, strict=True
                ):
                    place.assign(message)
        # What is returned waits for all that is assigned.
        return tf.constant(True)

    def _mean_in_graph(self, counts: tf.Tensor, fragment: int) -> tf.Tensor:
        messages = []
        for member, own in zip(self.members, self._outboxes, strict=True):
            with tf.device(member.replica.device):
                messages.append([tf.identity(v.value()) for v in own])
        sums = [] if self._reduce.wire.is_exact else self._sums[fragment]
        means = self._reduce(messages, counts, sums)
        for member, place, mean in zip(
            self.members, self._means, means, strict=True
        ):
            with tf.device(member.replica.device):
                place.assign(mean)
        return tf.constant(True)

    def _step_in_graph(
        self, eta: tf.Tensor, kept: tf.Tensor, fragment: int
    ) -> tf.Tensor:
        for member, mean in zip(self.members, self._means, strict=True):
            replica, common = member.replica, member.common
            with tf.device(replica.device):
                common.outer_step(fragment, mean.value(), tf.identity(eta))
                after = common.piece(fragment)
                left, own, right = self._around(member, fragment)
                keeps = tf.cast(kept, own.dtype)
                own = keeps * own + (1 - keeps) * after
                moved = tf.concat([left, own, right], axis=0)
                replica.weights.assign(moved[: common.form.weights.size])
        return tf.constant(True)

    def _around(
        self, member: Member, fragment: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """A member's weights before a fragment, in it and behind it."""
        length = member.common.length
        vector = member.common.filled(tf.identity(member.replica.weights.value))
        begin, end = fragment * length, (fragment + 1) * length
        return vector[:begin], vector[begin:end], vector[end:]
