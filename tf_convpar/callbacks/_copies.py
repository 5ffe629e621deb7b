"""The copies of a model that trains, and when it is time for another."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Collection

import keras

from tf_convpar.callbacks._writer import Writer
from tf_convpar.callbacks.peer_copies import Nearby
from tf_convpar.callbacks.replay_log import ReplayLog
from tf_convpar.callbacks.snapshot import Snapshot
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.timeline import COPIES
from tf_convpar.timeline import note

# Bytes of the batches since the last copy, after which there is another; and
# after which training waits for one that is on its way.
_MOST_KEPT, _MOST_HELD = 2**29, 2**30


class Copies:
    """The last complete states of a model, and the steps since then.

    Args:
        every_s: Seconds between two copies on the chief.
        neighbours_s: Seconds between two copies that stay with the workers;
            None for none.

    Attributes:
        since: Log of the steps since the last copy of either kind.
    """

    def __init__(self, every_s: float, neighbours_s: float | None) -> None:
        self.since = ReplayLog()
        self._every_s, self._neighbours_s = every_s, neighbours_s
        self._snapshot: Snapshot | None = None
        self._writer: Writer | None = None
        # Whether the snapshot's variables were compared with the model's.
        self._compared = False
        self._nearby: Nearby | None = None
        # Places in `since` of the copies under way, and of the last nearby one.
        self._at = self._near_at = 0
        self._near: int | None = None
        # Times when the copies under way began, and when the last ones came.
        self._begun_s = self._near_begun_s = 0.0
        self._taken = self._near_taken = 0.0

    @property
    def exist(self) -> bool:
        """Whether there is any copy."""
        return self._snapshot is not None

    @property
    def plain(self) -> keras.Model:
        """A plain model with the state of the last copy, on the chief."""
        return self._last_snapshot().plain

    def are_whole(self, model: keras.Model) -> bool:
        """Whether there is a copy of all variables that the model has.

        The first step may add variables of metrics.
        """
        if self._snapshot is None:
            return False
        if self._compared:
            return True
        self._compared = True
        return self._snapshot.is_of(model)

    def first(
        self,
        model: keras.Model,
        folder: pathlib.Path | None,
        place: tuple[int, int],
        strategy: ConvParallelStrategy,
    ) -> None:
        """Makes the first copy, and waits for it.

        Args:
            model: A model that is built.
            folder: Folder to which copies are written as well; None for none.
            place: Epoch, and steps of it that have been made.
            strategy: Strategy of the model.
        """
        start_s = time.time()
        self._compared = False
        if folder is not None and self._writer is None:
            self._writer = Writer(folder)
        before, self._snapshot = (
            self._snapshot,
            Snapshot(model, self._writer, place),
        )
        if before is not None:
            before.end()
        note("copy of the model", start_s, COPIES)
        if self._neighbours_s is not None:
            self._nearby = Nearby(strategy.devices, strategy.chief_device)
        self.since.forget(self.since.now)
        self._taken = self._near_taken = time.monotonic()

    def keep_up(self, model: keras.Model) -> bool:
        """Takes copies that have come, and begins a nearby one that is due.

        Returns:
            Whether it is time for a copy on the chief.
        """
        snapshot, nearby, now = (
            self._last_snapshot(),
            self._nearby,
            time.monotonic(),
        )
        if snapshot.under_way:
            self.arrived(wait=self.since.bytes >= _MOST_HELD)
            return False
        if self._is_due(now):
            return True
        if nearby is None or self._neighbours_s is None:
            return False
        if nearby.under_way:
            self._near_arrived()
        elif now - self._near_taken >= self._neighbours_s:
            self._near_at, self._near_begun_s = self.since.now, time.time()
            nearby.begin(snapshot.read(model))
        return False

    def begin(self, model: keras.Model, place: tuple[int, int]) -> None:
        """Begins a copy to the chief."""
        self._at, self._begun_s = self.since.now, time.time()
        self._last_snapshot().begin(model, place)

    def arrived(self, wait: bool = False) -> bool:
        """Whether the copy to the chief has come; to be asked once for each.

        Args:
            wait: Whether to wait for it.
        """
        if not self._last_snapshot().arrived(wait):
            return False
        note("copy of the model", self._begun_s, COPIES)
        self.since.forget(self._at)
        self._taken = time.monotonic()
        return True

    def settle(self) -> None:
        """Waits for what is under way, whether it comes or not."""
        self.arrived(wait=True)
        self._near_arrived(wait=True)

    def newest(self, absent: Collection[tuple[str, int]]) -> None:
        """Makes `plain` the newest state that is complete without some tasks.

        Raises:
            tf.errors.OpError: Another worker is lost meanwhile.
        """
        near = self._near
        if self._nearby is None or near is None or near < self.since.start:
            return
        values = self._nearby.values(absent)
        if values is not None:
            self._last_snapshot().put(values)
            self.since.forget(near)

    def moved(self, strategy: ConvParallelStrategy | None = None) -> None:
        """Forgets the model's variables, which others have replaced.

        Args:
            strategy: Strategy with other devices; None if they are the same.
        """
        if self._snapshot is not None:
            self._snapshot.forget()
        if self._nearby is not None and strategy is not None:
            self._near = None
            self._nearby.forget(strategy.devices)

    def end(self, remove: bool = False) -> None:
        """Waits for all that is under way, and forgets it.

        Args:
            remove: Whether to remove what was written.
        """
        snapshot, nearby, writer = self._snapshot, self._nearby, self._writer
        self._snapshot = self._nearby = self._near = self._writer = None
        self.since = ReplayLog()
        if snapshot is not None:
            snapshot.end()
        if nearby is not None:
            nearby.end()
        if writer is not None:
            writer.end(remove)

    def _near_arrived(self, wait: bool = False) -> None:
        if self._nearby is not None and self._nearby.arrived(wait):
            note("copy with neighbours", self._near_begun_s, COPIES)
            self._near = self._near_at
            self._near_taken = time.monotonic()

    def _is_due(self, now: float) -> bool:
        late = now - self._taken >= self._every_s
        return late or self.since.bytes >= _MOST_KEPT

    def _last_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise RuntimeError("Expected a copy of the model. Received none.")
        return self._snapshot
