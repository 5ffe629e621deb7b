"""Replicas that meet seldom: DiLoCo, and Streaming DiLoCo.

Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language
Models* (2023, arXiv 2311.08105), algorithm 1, and *Streaming DiLoCo with
overlapping communication* (2025, arXiv 2501.18512), algorithm 2. Symbols are
those of `_equations`; `H` is `every`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator
from concurrent.futures import Executor
from concurrent.futures import wait
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import has_schedule
from tf_convpar.replicas._common_weights import CommonWeights
from tf_convpar.replicas._mailbox import Mailbox
from tf_convpar.replicas._member import Member
from tf_convpar.replicas._member import begin_at_newest
from tf_convpar.replicas._member import limit_s
from tf_convpar.replicas._outer_rounds import OuterRounds
from tf_convpar.replicas._outer_rounds import Sent
from tf_convpar.replicas._report import Report
from tf_convpar.replicas._schedule import Schedule
from tf_convpar.replicas._schedule import steps_by_share
from tf_convpar.replicas._stragglers import Stragglers
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.local_steps import LocalSteps
from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.replica import PackedState
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import wire_of

# How long others wait for a replica, as a part of the time of its steps, where
# speeds are measured. Where shares are given they wait until it has ended, so
# that a training is the same each time.
_PATIENCE = 0.25


class DiLoCo(Stragglers):
    """Replicas learn alone for many steps, and then share what they learned.

    ```python
    model.compile(keras.optimizers.Adam(1e-3), loss)
    method = DiLoCo(model, every=100, fragments=4, wire="int8")
    method.fit(x, y, batch_size=64, epochs=30)
    ```

    Each replica trains with the model's own optimizer, whose slots stay with
    it. After `every` steps the mean of what all have moved by, `Wc - W^i`, is
    the gradient of an outer optimizer, which steps the common weights; the
    replicas go on from these. That sends the weights once in `every` steps,
    where `SyncSGD` sends them in each.

    Rounds go on from epoch to epoch: within `fit`, the model has the common
    weights of the last exchange when an epoch ends. At the end of `fit` what
    is not yet exchanged is.

    Args:
        model: A Keras model, built and compiled.
        every: Local steps of a replica from one exchange of a weight to the
            next, `H`; on average, where `unequal="steps"`.
        outer: The outer optimizer; None for
            `SGD(0.7, momentum=0.9, nesterov=True)`.
        fragments: In how many parts the weights travel, one after another,
            each `every / fragments` steps after the one before.
        delay: Steps that replicas make while a fragment travels, before they
            use it: at most `every / fragments`, which is the default of
            several fragments. One has 0: replicas wait for it.
        kept: What a replica keeps of its own weights where a fragment arrives
            after a delay; the rest is the common weights'. 1 would keep all.
        wire: `"float32"`, `"bfloat16"`, `"int8"` or `"int4"`: how differences
            travel. Whole numbers have a scale for each 256 weights; what
            rounding loses is added to the next difference.
        unequal: What faster replicas have more of: `"batches"`, larger ones,
            or `"steps"`, more of them, by the speeds that each has shown.
            Contributions count by samples.
        patience: The longest that a replica makes the others wait for its
            steps, as a part of their time. It stops then, and what it has made
            counts; who hangs or is lost is left out of the round. None is 0.25
            where speeds are measured, and no limit where `shares` are given,
            so that a training is the same each time.
        backup_dir: A folder on each machine, of the same name, in which each
            task keeps the last two rounds; a relative name is relative to
            where the task was started. A `fit` that finds some goes on from
            the newest that any task has whole; one that comes to its end
            leaves none. None keeps nothing.
        backup_every: Exchanges of fragments from one backup to the next.
        **kwargs: `devices`, `shares`, `seed` and `plan`, as for all methods.

    Raises:
        ValueError: An argument is out of its range. From `fit`: backups are
            of another model, or cannot be written.
    """

    _waits = True
    _many_in_a_call = True

    def __init__(
        self,
        model: keras.Model,
        every: int = 50,
        outer: keras.optimizers.Optimizer | None = None,
        fragments: int = 1,
        delay: int | None = None,
        kept: float = 0.5,
        wire: str = "float32",
        unequal: str = "batches",
        patience: float | None = None,
        backup_dir: str | os.PathLike[str] | None = None,
        backup_every: int = 1,
        **kwargs: Any,
    ) -> None:
        if patience is not None and not patience >= 0:
            raise ValueError(
                f"Expected patience of at least 0. Received: {patience!r}."
            )
        shares = kwargs.get("shares")
        self._measures = shares is None or isinstance(shares, str)
        if patience is None:
            patience = _PATIENCE if self._measures else math.inf
        super().__init__(
            model, backup_dir, backup_every, patience=patience, **kwargs
        )
        self.schedule = Schedule.of(every, fragments, delay)
        if not 0 <= kept < 1:
            raise ValueError(
                f"Expected 0 <= kept < 1. Received: kept={kept!r}."
            )
        if unequal not in ("batches", "steps"):
            raise ValueError(
                'Expected unequal to be "batches" or "steps". Received: '
                f"{unequal!r}."
            )
        if outer is None:
            outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        if has_schedule(outer):
            raise ValueError(
                "Expected an outer optimizer of one learning rate. Received a "
                f"schedule: {outer.get_config()['learning_rate']}."
            )
        self.outer, self.kept, self.unequal = outer, kept, unequal
        self._wire = wire_of(wire)
        # The exchange under way.
        self._sent: Sent | None = None
        self._sent_at = 0
        self._has_travelled = False
        # Steps under way, and who has made them while another was lost.
        self._under_way = 0
        self._last_runs: dict[Replica, StepsRun] = {}
        # Whether graphs of earlier rounds are still there.
        self._has_old = False

    def report(self) -> Report:
        """Each replica's share of the samples, and its exchanges."""
        members = [self._members[replica] for replica in self.replicas]
        total = sum(member.samples for member in members)
        return Report(member.report(total) for member in members)

    def round_bytes(self) -> list[int]:
        """Bytes that each replica sends in `every` steps."""
        return [
            self.schedule.fragments * self._rounds.nbytes(i)
            for i in range(len(self.replicas))
        ]

    def _centre_of(self, form: PackedState) -> CommonWeights:
        return self._common(form, self.devices[0])

    def _keep_centre(self, absent: set[tuple[str, int]]) -> None:
        """Each replica has it: `_make` takes one that is left."""

    def _make(self) -> None:
        first = not self._members
        members = []
        for replica in self.replicas:
            member = self._members.get(replica)
            if member is None:
                own = isinstance(self.centre, CommonWeights) and (
                    first and self.centre.device == replica.device
                )
                common = (
                    self.centre
                    if own
                    else self._common(self._there().form, replica.device)
                )
                assert isinstance(common, CommonWeights)
                member = Member(
                    replica,
                    common,
                    LocalSteps(replica, self.chief),
                    Mailbox(replica, common, self._wire),
                )
            members.append(member)
        self._members = dict(zip(self.replicas, members, strict=True))
        self._rounds = OuterRounds(members, self._wire)
        self._begin_anew()
        self.centre = begin_at_newest(self._taking_part())
        self._sent = None

    def _make_anew(self) -> None:
        self._has_old = True
        self._make()

    def _common(self, form: PackedState, device: str) -> CommonWeights:
        fragments = self.schedule.fragments
        return CommonWeights(form, device, self.outer, fragments)

    def _begin_at(self, weights: tf.Tensor) -> None:
        for member in self._members.values():
            member.common.assign(weights)
        self._position = 0
        self._sent = None

    @property
    def _counts_steps(self) -> bool:
        """Whether replicas get steps by the speeds that they showed."""
        return self._measures and self.unequal == "steps"

    def _measure(
        self, form: PackedState, source: Source, batch_size: int
    ) -> None:
        if self._counts_steps:
            # Their first step says how fast they are.
            self.shares = [1.0] * len(self.devices)
        else:
            super()._measure(form, source, batch_size)

    def _batches(self, total: int) -> list[int]:
        if self.unequal == "batches":
            return super()._batches(total)
        return [total // len(self.replicas)] * len(self.replicas)

    def _steps(
        self, steps: int, source: Source
    ) -> Generator[tuple[int, Any], None, None]:
        done = 0
        with self._steps_under_way.threads(len(self.replicas) + 1) as pool:
            while done < steps:
                length = self._under_way or min(
                    self._next_steps(), steps - done
                )
                runs = self._learn(length, source, pool)
                done += length
                self._position += length
                self._exchange()
                yield length, sum(run.metrics for run in runs)

    def _next_steps(self) -> int:
        """Steps until something is due, or until speeds are known."""
        paces = [member.pace for member in self._members.values()]
        if self._counts_steps and not any(paces):
            return 1
        sent_at = self._sent_at if self._sent else None
        return self.schedule.steps_left(self._position, sent_at)

    def _learn(
        self, length: int, source: Source, pool: Executor
    ) -> list[StepsRun]:
        """Steps of all who are not late, while a fragment travels."""
        self._let_late_begin()
        members = self._taking_part()
        goals = dict(zip(self.replicas, self._goals(length), strict=True))
        eta = self._eta()
        limit = limit_s(
            members, [goals[m.replica] for m in members], self.patience
        )
        travels = []
        if self._sent and not self._has_travelled:
            travels = [pool.submit(self._rounds.travel, self._sent)]
        # Before anyone takes a batch; who is new is traced while others learn.
        due = [
            (member, source.example(member.replica))
            for member in members
            if member.replica not in self._last_runs
        ]
        begin = time.monotonic()
        for member, example in sorted(due, key=lambda due: due[0].pace is None):
            member.local.trace(example)
            left = max(0.0, limit - (time.monotonic() - begin))
            goal = goals[member.replica]
            self._start(member, goal, left, eta, source.batch)
        self._under_way = length
        # So is their exchange.
        self._rounds.trace(self.schedule.following(self._position))
        if self._has_old:
            self._release()
            self._has_old = False
        try:
            runs, error = self._ended(limit)
        finally:
            wait(travels)
        for replica, run in runs.items():
            self._last_runs[replica] = run
            self._members[replica].note(run)
        if error:
            raise error
        for travel in travels:
            travel.result()
        runs = {r: self._last_runs[r] for r in self._present}
        self._under_way, self._last_runs = 0, {}
        self._has_travelled = bool(self._sent)
        if self._counts_steps:
            self._adapt(list(self._members.values()))
        return list(runs.values())

    def _goals(self, length: int) -> list[int]:
        """Steps of each replica that make so many on average."""
        if self.unequal == "batches":
            return [length] * len(self.replicas)
        assert isinstance(self.shares, list)
        begin, end = self._position, self._position + length
        return steps_by_share(self.shares, begin, end)

    def _adapt(self, members: list[Member]) -> None:
        """Shares of steps by the speeds that were last measured."""
        speeds = [1 / member.pace for member in members if member.pace]
        if len(speeds) == len(members):
            self.shares = [speed / sum(speeds) for speed in speeds]

    def _exchange(self) -> None:
        """What is due after the steps that were made."""
        schedule, position = self.schedule, self._position
        if self._sent and schedule.arrives(position, self._sent_at):
            self._receive(self.kept)
        if schedule.leaves(position):
            self._send(schedule.last(position))
            if not schedule.delay:
                self._receive(0.0)

    @property
    def _between(self) -> int:
        return self.schedule.between

    def _send_again(self) -> None:
        if self.schedule.delay:
            self._send(self.schedule.last(self._position))

    def _send(self, fragment: int) -> None:
        self._sent = self._rounds.sent(fragment, self._taking_part())
        self._has_travelled = False
        self._sent_at = self._position

    def _receive(self, kept: float) -> None:
        if self._sent is None:
            return
        sent, self._sent = self._sent, None
        if not self._has_travelled:
            self._rounds.travel(sent)
        eta = float(self.outer.learning_rate)
        present = self._taking_part()
        receivers = [m for m in present if m.replica in sent.samples]
        self._rounds.received(sent, receivers, eta, kept)
        if receivers:
            self.centre = receivers[0].common
        if len(receivers) < len(present):
            # Who was late when it was sent has not got it.
            self.centre = begin_at_newest(present)

    def _finish(self, last: bool) -> None:
        """At the end of `fit` all that was learned is shared."""
        if not last:
            return
        self._under_way, self._last_runs = 0, {}
        self._steps_under_way.wait()
        # Who has not moved since it sent this keeps nothing of its own.
        moved = self._position > self._sent_at
        self._receive(self.kept if moved else 0.0)
        for fragment in range(self.schedule.fragments):
            if any(m.learned(fragment) for m in self._taking_part()):
                self._send(fragment)
                self._receive(0.0)
        self._position = 0
