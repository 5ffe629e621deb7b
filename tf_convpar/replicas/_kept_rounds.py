"""Replicas that meet seldom, and keep each round: the program may die."""

from __future__ import annotations

import abc
import os
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import has_schedule
from tf_convpar._compat.keras import steps_counter
from tf_convpar.cluster.joining import step
from tf_convpar.replicas._backups import Backups
from tf_convpar.replicas._member import Member
from tf_convpar.replicas._method import Method
from tf_convpar.replicas.backup_record import Place
from tf_convpar.replicas.data import Arrays
from tf_convpar.replicas.data import Source
from tf_convpar.replicas.replica import Replica


class KeptRounds(Method):
    """A method whose replicas keep the rounds on their machines.

    Args:
        model: As for `Replicated`.
        backup_dir: Where; None keeps nothing.
        backup_every: Exchanges from one backup to the next.
        **kwargs: As for `Replicated`.
    """

    def __init__(
        self,
        model: keras.Model,
        backup_dir: str | os.PathLike[str] | None,
        backup_every: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        if backup_every < 1:
            raise ValueError(
                "Expected backup_every of at least 1 exchange. Received: "
                f"{backup_every!r}."
            )
        self._backups: Backups | None = None
        if backup_dir is not None:
            self._backups = Backups(os.fspath(backup_dir), model.name)
        self._backup_every = backup_every
        self._members: dict[Replica, Member] = {}
        # Steps since the common weights began.
        self._position = 0

    @property
    @abc.abstractmethod
    def _between(self) -> int:
        """Steps from one exchange to the next."""

    @abc.abstractmethod
    def _send_again(self) -> None:
        """Sends what was on its way when the backup was written."""

    def _resumed(
        self, source: Source, epoch: int, steps: int
    ) -> tuple[int, int]:
        if self._backups is None:
            return epoch, 0
        members = list(self._members.values())
        place = self._backups.load(members)
        if place is None:
            place = self._place_of(epoch, 0, steps)
            self._backups.keep(members, place, first=True)
            return epoch, 0
        epoch, done = place.within(steps)
        optimizer = self.model.optimizer
        steps_counter(optimizer).assign(place.iterations)
        if not has_schedule(optimizer):
            optimizer.learning_rate.assign(place.rate)
        self.to_model()
        self._position = place.position
        if self._position and self._position % self._between == 0:
            self._send_again()
        for member in members:
            # The order of arrays is that of an undisturbed training. To go
            # through files of many epochs again would take too long.
            passed = isinstance(source, Arrays) and member.passed
            member.passed = passed or done
            _pass_over(source, member.replica, member.passed)
        return epoch, done

    def _keep(self, epoch: int, done: int, steps: int) -> None:
        exchanges, between = divmod(self._position, self._between)
        if self._backups and not between and not exchanges % self._backup_every:
            self._backups.keep(
                self._taking_part(), self._place_of(epoch, done, steps)
            )

    def _taking_part(self) -> list[Member]:
        """All who are not late."""
        return [self._members[replica] for replica in self._present]

    def _over(self) -> None:
        if self._backups:
            self._backups.end()

    def _restart(self) -> None:
        for member in self._members.values():
            member.passed = 0

    def _place_of(self, epoch: int, done: int, steps: int) -> Place:
        return Place(
            round=self._position // self._between,
            position=self._position,
            epoch=epoch,
            step=done,
            steps=steps,
            iterations=int(steps_counter(self.model.optimizer)),
            rate=self._eta(),
        )


def _pass_over(source: Source, replica: Replica, batches: int) -> None:
    """Leaves batches out that were learned from."""
    if not isinstance(replica.data, tf.data.Iterator):
        for _ in range(batches):
            source.batch(replica)
        return

    def passed(count: tf.Tensor, data: tf.data.Iterator) -> tf.Tensor:
        with tf.device(replica.device):

            def one(index: tf.Tensor) -> tuple[tf.Tensor]:
                batch = tf.nest.flatten(replica.taken(data))
                with tf.control_dependencies(batch):
                    return (index + 1,)

            (index,) = tf.while_loop(
                lambda index: index < tf.identity(count),
                one,
                [tf.constant(0)],
                parallel_iterations=1,
            )
        return index

    arguments = (tf.constant(batches), replica.data)
    function = tf.function(passed, autograph=False)
    with step():
        function.get_concrete_function(*arguments)(*arguments).numpy()
