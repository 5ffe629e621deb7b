"""Replicas whose machines are lost, and return."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar.cluster.joining import members
from tf_convpar.cluster.spec import Task
from tf_convpar.cluster.transient_errors import Retries
from tf_convpar.machines import task_of
from tf_convpar.replicas._replicated import Replicated
from tf_convpar.replicas.data import Source
from tf_convpar.strategy.devices import default_devices

# Seconds for which an epoch waits for the answers of those who are away. Who
# is back answers at once; of silent machines it is known in a later epoch.
_RETURNED_S = 0.5


class Survivors(Replicated):
    """Replicas that go on when some of them are lost.

    Args:
        model: As for `Replicated`, as are all others.
        **kwargs: As for `Replicated`.
    """

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        # Group, share and samples of a step of replicas that are lost.
        self._away: list[tuple[list[str], float, int]] = []
        # Of what has failed since something was last done.
        self._tries = Retries()

    def _survived(
        self, call: Callable[[], Any], source: Source | None = None
    ) -> Any:
        """The result of a call, made again without the lost.

        Args:
            call: The call.
            source: In an epoch, its data, which is cut anew; else None.
        """
        self._has_done_something()
        while True:
            try:
                return call()
            except tf.errors.OpError as error:
                if source is not None:
                    self._go_on_without_lost(source, error)
                elif not self._leave_lost_out() and not self._passes(error):
                    raise

    def _has_done_something(self) -> None:
        """What fails from now on has not failed before."""
        self._tries = Retries()

    def _passes(self, error: tf.errors.OpError) -> bool:
        """Whether to try again what failed though nobody is lost."""
        if not (self._tries.should_retry(error) and members()):
            return False
        print_msg(f"{self.model.name}: a connection failed; trying again.")
        return True

    def _leave_lost_out(self) -> bool:
        """Leaves replicas out whose task is gone, and the task as well.

        The centre goes on; if it was lost, from the mean of those left.

        Returns:
            Whether any task was gone.

        Raises:
            RuntimeError: No replica is left.
        """
        cluster_members = members()
        gone = cluster_members.lost() if cluster_members else []
        tasks = {(task.job, task.index) for task in gone}
        lost = [bool(tasks & set(map(task_of, g))) for g in self.groups]
        if not cluster_members or not gone:
            return False
        names = ", ".join(f"{task.job} {task.index}" for task in gone)
        if all(lost):
            raise RuntimeError(
                f"Expected a replica to be left. Received none: lost {names}, "
                "where all of them were. Let the chief have one as well "
                "(`devices=strategy.devices`), or resume with "
                "keras.callbacks.BackupAndRestore."
            ) from None
        cluster_members.leave(gone)
        if not self.replicas:
            self._without_groups(lost)
            print_msg(f"{self.model.name}: begins without {names}, lost.")
            return True
        shares = list(map(float, self.shares or []))
        every = list(zip(self.groups, shares, self.replicas, lost, strict=True))
        self._away += [(g, s, r.batch) for g, s, r, off in every if off]
        left = [(g, s, r) for g, s, r, off in every if not off]
        self._set_replicas(*map(list, zip(*left, strict=True)))
        # Also of those who left when this failed half-way.
        self._keep_centre(
            {(task.job, task.index) for task in cluster_members.absent}
        )
        self._make_anew()
        print_msg(
            f"{self.model.name}: lost {names}. {len(self.replicas)} of "
            f"{len(every)} replicas go on."
        )
        return True

    def _without_groups(self, lost: Sequence[bool]) -> None:
        """Leaves groups out of which there is no replica yet."""
        left = [i for i, off in enumerate(lost) if not off]
        self.groups = [self.groups[i] for i in left]
        self.devices = [group[0] for group in self.groups]
        if isinstance(self.shares, list):
            self.shares = [self.shares[i] for i in left]

    def _go_on_without_lost(self, source: Source, error: Exception) -> None:
        """In an epoch, with data that is cut anew.

        Raises:
            Exception: The given error, if no task is gone, and it stays.
            RuntimeError: No replica is left.
        """
        while True:
            try:
                if not self._leave_lost_out():
                    if not self._passes(error):
                        raise error
                    self._make_anew()
                self._place(source)
                return
            except tf.errors.OpError as another:
                # Another one is lost meanwhile.
                if another is error:
                    raise
                error = another

    def _take_back(self, source: Source) -> None:
        """Lets replicas whose task is there again begin at the centre.

        Raises:
            tf.errors.OpError: One of them, or another one, is lost meanwhile.
        """
        cluster_members = members()
        if not cluster_members or not (self._away or self._late):
            return
        back = cluster_members.returned(_RETURNED_S)
        if back:
            try:
                cluster_members.join(back)
            except TimeoutError:
                return  # Gone again, before it was part of anything.
            self._note_newcomers(task for task in self._late if task in back)
        absent = {(task.job, task.index) for task in cluster_members.absent}
        returned = [
            (group, share, batch)
            for group, share, batch in self._away
            if not absent & set(map(task_of, group))
        ]
        if not returned:
            return
        replicas = list(self.replicas)
        for group, _, batch in returned:
            newcomer = self._replica(
                self._there().form,
                group,
                len(replicas),
                self._replica_optimizer(),
                source,
            )
            newcomer.batch = batch
            replicas.append(newcomer)
        self._away = [a for a in self._away if a not in returned]
        groups, shares, _ = map(list, zip(*returned, strict=True))
        self._set_replicas(
            [*self.groups, *groups],
            [*map(float, self.shares or []), *shares],
            replicas,
        )
        self._make_anew()
        self._place(source)
        names = ", ".join(
            sorted({" ".join(map(str, task_of(d))) for g in groups for d in g})
        )
        print_msg(
            f"{self.model.name}: {names} is back. {len(replicas)} replicas."
        )

    def _note_newcomers(self, tasks: Iterable[Task]) -> None:
        """Counts tasks as away that have joined for the first time."""
        names = {(task.job, task.index) for task in tasks}
        self._late = [t for t in self._late if (t.job, t.index) not in names]
        count = len(self.replicas)
        share = sum(map(float, self.shares or [])) / count
        batch = round(sum(r.batch for r in self.replicas) / count)
        self._away += [
            ([device], share, batch)
            for device in default_devices()
            if task_of(device) in names
        ]

    def _keep_centre(self, absent: set[tuple[str, int]]) -> None:
        """A centre that was on a lost task begins at the replicas' mean."""
        centre = self._there()
        if absent & set(map(task_of, centre.devices)):
            weights = [tf.identity(r.weights.value) for r in self.replicas]
            self.centre = self._centre_of(centre.form)
            self.centre.assign(tf.add_n(weights) / len(weights))
            if centre.optimizers:
                self.centre.take_slots(centre, absent)
