"""A way to train a model on a cluster, and what is predicted of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from tf_convpar.machines import short
from tf_convpar.placement import check_pushes
from tf_convpar.placement import check_rounds
from tf_convpar.placement import check_wire

# Which training a way reproduces number for number.
ONE_DEVICE = "one device"
OWN_MOMENTS = "own moments"
OWN_STEPS = "own steps"
NUMBERS = {
    ONE_DEVICE: "exactly those of one device with the same batch",
    OWN_MOMENTS: "those of data parallelism: one step with the gradient of all "
    "samples, but batch normalization by each device's own",
    OWN_STEPS: "replicas step from weights of their own: what a sample "
    "teaches is not predicted",
}
ALONE = "alone"
SPLIT = "split"
REPLICAS = "replicas"
GROUPS = "groups"
# Methods of `convpar.replicas` of which something is predicted.
METHODS = (
    "SyncSGD",
    "SyncEASGD",
    "AsyncSGD",
    "AsyncEASGD",
    "DownpourSGD",
    "DiLoCo",
)
NAMES = (ALONE, SPLIT, *METHODS, GROUPS)
# The most names in a row.
_MOST_NAMED = 6


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Arguments of methods that change what travels.

    Attributes:
        every: As for `DiLoCo`.
        fragments: As for `DiLoCo`, whose `delay` is the default.
        wire: As for `DiLoCo` and `SyncSGD`.
        n_push: As for `DownpourSGD`.
        n_fetch: As for `DownpourSGD`; None for `n_push`.
    """

    every: int = 50
    fragments: int = 1
    wire: str = "float32"
    n_push: int = 1
    n_fetch: int | None = None

    def __post_init__(self) -> None:
        check_rounds(self.every, self.fragments)
        check_wire(self.wire)
        check_pushes(self.fetch, self.n_push)

    @property
    def fetch(self) -> int:
        """Steps from one fetch to the next."""
        return self.n_push if self.n_fetch is None else self.n_fetch


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train a model on a cluster, and what is predicted of it.

    Attributes:
        kind: `"alone"`, `"split"`, `"replicas"` or `"groups"`.
        method: Name of the class in `convpar.replicas`; None for one model.
        groups: Names of the devices of each replica.
        batches: Samples of each replica's step.
        step_s: Seconds in which all together learn from as many samples as
            `batches` sum up to: those of a step, where all step at once.
        received_bytes: Bytes in that time into the device that receives most.
        numbers: Whose numbers it gives: one of `NUMBERS`.
    """

    kind: str
    method: str | None
    groups: tuple[tuple[str, ...], ...]
    batches: tuple[int, ...]
    step_s: float
    received_bytes: int
    numbers: str

    @property
    def exact(self) -> bool:
        """Whether a step gives the numbers of one device at the same batch."""
        return self.numbers == ONE_DEVICE

    @property
    def samples_per_s(self) -> float:
        """Samples from which all replicas together learn in a second."""
        return sum(self.batches) / self.step_s

    @property
    def name(self) -> str:
        """Its name among the ways to train on one cluster."""
        if self.kind == GROUPS:
            return f"{len(self.groups)} {GROUPS}"
        return self.method or self.kind

    @property
    def label(self) -> str:
        """A few words for readers."""
        parts = [_listed(map(short, group), " + ") for group in self.groups]
        devices = _listed(parts, ", ")
        name = f"{self.method} of {self.kind}" if self.method else self.kind
        return f"{name}: {devices}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self) | {
            "exact": self.exact,
            "samples_per_s": self.samples_per_s,
        }


def check_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of ways that are asked for, in the order of `NAMES`.

    Args:
        names: Some of `NAMES`; None for all of them.

    Raises:
        ValueError: One is unknown, or there are none.
    """
    if names is None:
        return NAMES
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ValueError(
            f"Expected ways among {', '.join(NAMES)}. Received: "
            f"{', '.join(map(repr, unknown)) or 'none'}."
        )
    return tuple(name for name in NAMES if name in names)


def _listed(names: Iterable[str], between: str) -> str:
    shown = list(names)
    if len(shown) > _MOST_NAMED:
        more = len(shown) - _MOST_NAMED + 1
        shown = [*shown[: _MOST_NAMED - 1], f"{more} more"]
    return between.join(shown)
