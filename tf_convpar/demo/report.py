"""What the demo found out, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        losses: Loss of every training step.
        step_s: Median seconds of a step.
    """

    losses: tuple[float, ...]
    step_s: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Plain Keras, beside `parallelize` on one device and on several.

    Attributes:
        plain: Plain Keras on the chief.
        one: `parallelize` on the chief, with `algorithm="auto"`.
        many: `parallelize` on all devices, with an automatic plan as well.
        weights: Number of the network's weights.
        batch_size: Images of a step.
        devices: Names of the devices, the chief's first.
        used: Of these, the devices that the plan uses.
        parts: The part of a core that each device has.
        reason: What the planner chose, and why, in a line.
        predicted_s: Seconds of a step by the plan.
        measured_bytes: Median bytes that travel between the processes in a
            step, gRPC's headers included.
        counted_on: What counted those bytes: the tasks' `"sockets"`; or, where
            Linux tells nothing of sockets, the `"loopback"` interface, which
            other programs use as well.
        theory_bytes: Bytes that must travel in a step.
        cores: Number of cores that there were.
    """

    plain: Training
    one: Training
    many: Training
    weights: int
    batch_size: int
    devices: tuple[str, ...]
    used: tuple[str, ...]
    parts: tuple[float, ...]
    reason: str
    predicted_s: float | None
    measured_bytes: float
    counted_on: str
    theory_bytes: int
    cores: int

    def faster(self, training: Training) -> float:
        """How many times as fast as plain Keras a training's steps are."""
        return self.plain.step_s / training.step_s

    @property
    def adds(self) -> float:
        """How many times as fast as on one device steps on several are."""
        return self.one.step_s / self.many.step_s

    def differs(self, training: Training) -> float:
        """Largest relative difference of its losses from plain Keras'."""
        return float(max(differences(self.plain.losses, training.losses)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """The report of data that `to_dict` made, or that JSON made of it."""
        own = {f.name: values[f.name] for f in dataclasses.fields(cls)}
        for name in ("plain", "one", "many"):
            losses = tuple(own[name]["losses"])
            own[name] = Training(losses, own[name]["step_s"])
        for name in ("devices", "used", "parts"):
            own[name] = tuple(own[name])
        return cls(**own)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON, with figures derived from it."""
        return {
            **dataclasses.asdict(self),
            "faster": {n: self.faster(getattr(self, n)) for n in _PARALLEL},
            "adds": self.adds,
            "differs": {n: self.differs(getattr(self, n)) for n in _PARALLEL},
        }


_PARALLEL = ("one", "many")


def differences(these: Sequence[float], those: Sequence[float]) -> np.ndarray:
    """Difference of two losses in each step, relative to the larger."""
    one, other = np.array(these), np.array(those)
    larger = np.maximum(np.abs(one), np.abs(other))
    # Where both losses are 0, so is their difference.
    return np.abs(one - other) / np.where(larger == 0, 1, larger)
