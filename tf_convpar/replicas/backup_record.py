"""What a backup of a replica says of itself, beside its numbers."""

from __future__ import annotations

import dataclasses
import json
import re

from tf_convpar.files import Checked
from tf_convpar.files import Natural
from tf_convpar.files import Quantity
from tf_convpar.files import checked

# Keras numbers names by what else the program has made before.
_COUNTED = re.compile(r"_\d+(?=/|$)")


@dataclasses.dataclass(frozen=True)
class Place(Checked):
    """Where training was.

    Attributes:
        round: Exchanges until then.
        position: Steps since the common weights began.
        epoch: As Keras counts them, from 0.
        step: Steps of that epoch that were made.
        steps: Of how many.
        iterations: Of the model's optimizer.
        rate: Its learning rate.
    """

    round: Natural
    position: Natural
    epoch: Natural
    step: Natural
    steps: Natural
    iterations: Natural
    rate: Quantity

    def within(self, steps: int) -> tuple[int, int]:
        """Epoch and step from which to go on, where an epoch has so many."""
        step = self.step * steps // self.steps
        return (self.epoch, step) if step < steps else (self.epoch + 1, 0)


@dataclasses.dataclass(frozen=True)
class Record(Checked):
    """Of one file.

    Attributes:
        begun: When the training began, in seconds since 1970: none is the same.
        number: Backups of that training before this one.
        over: Whether it has come to its end. Then there are no numbers.
        place: Where it was.
        common: Of what all replicas share, in words.
        own: Of what is the replica's own, likewise.
        batches: Samples of a step of each replica.
        samples: From how many the replica had learned.
        exchanged: From how many, when each fragment was last exchanged.
        passed: Its steps since it was given data.
    """

    begun: Quantity
    number: Natural
    over: bool
    place: Place
    common: tuple[str, ...]
    own: tuple[str, ...]
    batches: tuple[Natural, ...]
    samples: Natural
    exchanged: tuple[Natural, ...]
    passed: Natural

    @property
    def age(self) -> tuple[float, int]:
        """What is larger is newer."""
        return self.begun, self.number

    @classmethod
    def from_text(cls, text: bytes, file: str) -> Record:
        """What `text` wrote.

        Raises:
            ValueError: It is something else.
        """
        return checked(cls, json.loads(text), file)

    def text(self) -> str:
        """For a file."""
        return json.dumps(dataclasses.asdict(self))

    def end(self) -> Record:
        """That of a training which has come to its end."""
        return dataclasses.replace(self, over=True, common=(), own=())


def plain(name: str) -> str:
    """A name as it is in a program that has made nothing before."""
    return _COUNTED.sub("", name)


def check_same(
    record: Record, common: tuple[str, ...], file: str, folder: str
) -> None:
    """Raises ValueError for a backup of another training."""
    if record.common == common:
        return
    expected, received = (
        [f"{number}. {what}" for number, what in enumerate(of, 1)]
        for of in (common, record.common)
    )
    differ = [pair for pair in zip(expected, received) if pair[0] != pair[1]]  # noqa: B905
    has, had = (
        differ[0]
        if differ
        else (f"{len(expected)} variables", f"{len(received)}")
    )
    raise ValueError(
        f"Expected backups of this model and method: {has}. Received {file}: "
        f"{had}. Give another backup_dir than {folder!r}, or delete that "
        "folder on all machines to begin anew."
    )
