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
from collections.abc import Callable
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.replicas._member import Member
from tf_convpar.replicas.all_reduce import AllReduce
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import Wire

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Sent:
    """A fragment on its way.

    Attributes:
        fragment: Its number.
        samples: From how many each had learned who sent it, when it did.
    """

    fragment: int
    samples: dict[Replica, int]


class OuterRounds:
    """The exchange of fragments between members.

    ```python
    sent = rounds.sent(fragment, members)
    rounds.travel(sent)  # may run beside members' steps
    rounds.received(sent, members, eta=0.7, kept=0.0)
    ```

    What lies between these calls is in the members' mailboxes. Only what
    travels knows all members, so that little is made anew where one is lost.

    Args:
        members: Those who take part.
        wire: How the differences travel.
    """

    def __init__(self, members: Sequence[Member], wire: Wire) -> None:
        self.members = list(members)
        common = members[0].common
        devices = [m.replica.device for m in members]
        self._reduce = AllReduce(devices, common.length, wire)
        # What rounding has left of the sums that each makes for all.
        self._sums: list[list[tf.Variable]] = []
        for _ in range(0 if wire.is_exact else len(common.pieces)):
            sums = []
            for j, device in enumerate(devices):
                with tf.device(device):
                    zeros = tf.zeros([self._reduce.sizes[j]])
                    sums.append(tf.Variable(zeros))
            self._sums.append(sums)
        self._mean = tf.function(self._mean_in_graph, autograph=False)

    def trace(self, fragment: int) -> None:
        """Makes the functions of a fragment's exchange, if they are not."""
        for member in self.members:
            member.mailbox.trace(fragment)
        counts = tf.TensorSpec([len(self.members)], tf.float32)
        self._mean.get_concrete_function(counts, fragment)

    def sent(self, fragment: int, senders: Sequence[Member]) -> Sent:
        """Takes members' differences, as they are now.

        Args:
            fragment: Its number.
            senders: Those who have learned; others may be late.
        """
        _of_all(senders, lambda member: member.mailbox.fill(fragment))
        return Sent(fragment, {m.replica: m.samples for m in senders})

    def travel(self, sent: Sent) -> None:
        """Brings the outer gradient to the device of each who sent."""
        senders = [m for m in self.members if m.replica in sent.samples]
        counts = np.asarray(
            [
                sent.samples[m.replica] - m.exchanged[sent.fragment]
                for m in senders
            ],
            "float32",
        )
        counts /= max(1.0, float(counts.sum()))
        if len(senders) == len(self.members):
            with step():
                self._mean(tf.constant(counts), sent.fragment).numpy()
            return
        # A function for these would be sent to all tasks first, and wait for
        # one that hangs. So they meet here, in float32.
        parts = _of_all(senders, lambda m: m.mailbox.difference.numpy())
        mean = np.tensordot(counts, parts, axes=1)
        _of_all(senders, lambda m: m.mailbox.mean.assign(mean))

    def received(
        self, sent: Sent, receivers: Sequence[Member], eta: float, kept: float
    ) -> None:
        """Steps the common weights, and moves members to them.

        Args:
            sent: What has travelled.
            receivers: Those who sent it and are not late now.
            eta: The outer learning rate.
            kept: How much a member keeps of its own weights (`m`).
        """
        _of_all(receivers, lambda m: m.mailbox.use(sent.fragment, eta, kept))
        for member in receivers:
            member.exchanged[sent.fragment] = sent.samples[member.replica]

    def nbytes(self, member: int) -> int:
        """Bytes that a member sends for one fragment."""
        return self._reduce.nbytes(member)

    def _mean_in_graph(self, counts: tf.Tensor, fragment: int) -> tf.Tensor:
        messages = []
        for member in self.members:
            box = member.mailbox
            with tf.device(member.replica.device):
                difference = box.difference.read_value()
                left = box.rounding(fragment, self._reduce.sizes)
                messages.append(self._reduce.cut(difference, left))
        sums = [] if self._reduce.wire.is_exact else self._sums[fragment]
        means = self._reduce(messages, counts, sums)
        for member, mean in zip(self.members, means, strict=True):
            with tf.device(member.replica.device):
                member.mailbox.mean.assign(mean)
        # What is returned waits for all that is assigned.
        return tf.constant(True)


def _of_all(
    members: Sequence[Member], call: Callable[[Member], _Result]
) -> list[_Result]:
    """Something that members do, all at once.

    Raises:
        tf.errors.OpError: One is lost; the others have done it.
    """
    with ThreadPoolExecutor(max(1, len(members))) as pool:
        runs = [pool.submit(call, member) for member in members]
    return [run.result() for run in runs]
