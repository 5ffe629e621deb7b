"""Backups of replicas: each round is kept by all, each on its own machine."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar.machines import host_of
from tf_convpar.replicas._backup_files import DAMAGED
from tf_convpar.replicas._backup_files import Seen
from tf_convpar.replicas._backup_files import State
from tf_convpar.replicas._backup_files import check_folder
from tf_convpar.replicas._backup_files import empty_parts
from tf_convpar.replicas._backup_files import named
from tf_convpar.replicas._backup_files import reason
from tf_convpar.replicas._backup_files import seen
from tf_convpar.replicas._backup_files import write_end
from tf_convpar.replicas._member import Member
from tf_convpar.replicas.backup_record import Place
from tf_convpar.replicas.backup_record import Record
from tf_convpar.replicas.backup_record import check_same
from tf_convpar.replicas.replica import Replica
from tf_convpar.strategy.devices import available

# How TensorFlow tells of disks that are full, or that cannot be written.
_CANNOT = (
    *DAMAGED,
    tf.errors.FailedPreconditionError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
)


class Backups:
    """Written after rounds, read when a training begins.

    ```python
    place = backups.load(members)  # None: there are none
    backups.keep(members, place)  # after a round
    backups.end()  # after the last one
    ```

    Each machine has its own, in a folder for each task. Nothing of them
    travels, but to replicas that do not have the newest.

    Args:
        folder: Its name, on every machine.
        name: The model's, for messages.
    """

    def __init__(self, folder: str, name: str) -> None:
        check_folder(folder)
        self._folder = folder.rstrip("/") or folder
        self._name = name
        self._begun = 0.0
        self._number = 0
        self._states: dict[Replica, State] = {}
        # Of whom it was said that they cannot write.
        self._failed: set[str] = set()

    def load(self, members: Sequence[Member]) -> Place | None:
        """The newest that any machine has whole becomes everyone's.

        Members get their own weights, slots and counts where their own machine
        has that backup, and begin at the common weights where not.

        Raises:
            ValueError: It is of another model, or all are damaged.
            tf.errors.OpError: A machine is lost.
        """
        every_file = []
        for host in _hosts():
            empty_parts(host, self._folder)
            every_file += seen(host, self._folder)
        whole = [(file, file.record) for file in every_file if file.record]
        over = max((r.begun for _, r in whole if r.over), default=0.0)
        self._begun, self._number = time.time(), 0
        damaged = [file for file in every_file if not file.record and not over]
        for file in damaged:
            self._pass_over(file, file.why)
        # Of a machine that was away when its training came to its end, too.
        left = [(file, record) for file, record in whole if record.begun > over]
        left.sort(key=lambda pair: pair[1].age, reverse=True)
        for _, group in itertools.groupby(left, lambda pair: pair[1].age):
            files, records = zip(*group, strict=True)
            place = self._taken(members, list(files), records[0])
            if place is not None:
                return place
        if left or damaged:
            raise ValueError(
                f"Expected a backup in {self._folder!r} that is whole. "
                f"Received {len(every_file)} files that are damaged (above). "
                "Delete the folder on all machines to begin anew."
            )
        return None

    def keep(
        self, members: Sequence[Member], place: Place, first: bool = False
    ) -> None:
        """Writes a backup of each member, on its machine.

        Args:
            members: They have just exchanged.
            place: Where training is.
            first: Whether none was written before: then who cannot is an
                error, else it is said, and training goes on.

        Raises:
            ValueError: A machine cannot write the first.
        """
        states = self._of(members)
        batches = tuple(m.replica.batch for m in members)
        records = [
            Record(
                begun=self._begun,
                number=self._number,
                over=False,
                place=place,
                common=state.common,
                own=state.own,
                batches=batches,
                samples=member.samples,
                exchanged=tuple(member.exchanged),
                passed=member.passed,
            )
            for member, state in zip(members, states, strict=True)
        ]
        with ThreadPoolExecutor(len(states)) as pool:
            written = [
                pool.submit(state.write, record)
                for state, record in zip(states, records, strict=True)
            ]
        self._number += 1
        for state, write in zip(states, written, strict=True):
            error = write.exception()
            if error is None:
                continue
            if not isinstance(error, tf.errors.OpError):
                raise error
            if first and isinstance(error, _CANNOT):
                raise ValueError(
                    "Expected backup_dir to be a folder that each task can "
                    f"write to. Received {self._folder!r}, and from "
                    f"{named(state.host)}: {reason(error)}."
                ) from None
            self._say_once(state.host, error)

    def end(self) -> None:
        """Leaves a note in the place of backups: the training is over."""
        for host in _hosts():
            with contextlib.suppress(tf.errors.OpError):
                for file in seen(host, self._folder):
                    if file.record and file.record.begun <= self._begun:
                        write_end(file)

    def _of(self, members: Sequence[Member]) -> list[State]:
        before, self._states = self._states, {}
        for member in members:
            state = before.get(member.replica)
            self._states[member.replica] = state or State(member, self._folder)
        return list(self._states.values())

    def _taken(
        self, members: Sequence[Member], files: list[Seen], record: Record
    ) -> Place | None:
        """Where training was, if one of some equally new files is whole."""
        states = self._of(members)
        check_same(
            record,
            states[0].common,
            f"{files[0].name} of {files[0].task}",
            self._folder,
        )
        keepers, others = [], []
        batches = tuple(m.replica.batch for m in members)
        for member, state in zip(members, states, strict=True):
            file = self._read(state, files)
            if file is None or file.record is None:
                return None
            keepers.append(file.task)
            own = file.record
            # As far as in an undisturbed training, if it has the same data.
            member.passed = own.passed if own.batches == batches else 0
            if state.is_own(file):
                member.samples = own.samples
                member.exchanged = list(own.exchanged)
            else:
                member.begin_at_common()
                if file.host != state.host:
                    others.append(named(state.host))
        self._begun, self._number = record.begun, record.number + 1
        place = record.place
        said = ", ".join(dict.fromkeys(keepers))
        if others:
            said += f"; {', '.join(dict.fromkeys(others))} took it over"
        print_msg(
            f"{self._name}: goes on from round {place.round} (epoch "
            f"{place.epoch + 1}, step {place.step}), kept by {said}."
        )
        return place

    def _read(self, state: State, files: list[Seen]) -> Seen | None:
        """The file that a replica could take, its own if that is whole."""
        nearest = sorted(
            files, key=lambda f: (not state.is_own(f), f.host != state.host)
        )
        for file in nearest:
            try:
                state.read(file, state.is_own(file))
                return file
            except DAMAGED as error:
                self._pass_over(file, reason(error))
                files.remove(file)
        return None

    def _pass_over(self, file: Seen, why: str) -> None:
        print_msg(
            f"{self._name}: passes over {file.name} of {file.task}: {why}."
        )

    def _say_once(self, host: str, error: tf.errors.OpError) -> None:
        if host not in self._failed:
            self._failed.add(host)
            print_msg(
                f"{self._name}: {named(host)} could not keep a round: "
                f"{reason(error)}."
            )


def _hosts() -> list[str]:
    return list(dict.fromkeys(host_of(device) for device in available()))
