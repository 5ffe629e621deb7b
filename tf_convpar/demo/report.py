"""What the demo found out, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pydantic


@dataclasses.dataclass(frozen=True)
class Trained:
    """What one training gave.

    Attributes:
        name: What made the model, for people.
        devices: Number of devices that it was on.
        losses: Loss of every training step.
        step_s: Median seconds of a step of the report's `batch_size` images.
        held_out_loss: Loss after the last step, on images never trained on.
        held_out_accuracy: Accuracy after the last step, on the same images.
        replicas: Whether each device trained a model of its own, on images in
            another order. Others make the steps of plain Keras.
    """

    name: str
    devices: int
    losses: tuple[float, ...]
    step_s: float
    held_out_loss: float
    held_out_accuracy: float
    replicas: bool = False

    @property
    def on(self) -> str:
        """Its number of devices, in words."""
        return in_words(self.devices)


@dataclasses.dataclass(frozen=True)
class Report:
    """Plain Keras beside the same training in other forms.

    Attributes:
        network: Name of the network.
        weights: Number of its weights.
        batch_size: Images of a step.
        trainings: All trainings: plain Keras on the chief first, the one that
            is split between all devices last.
        devices: Names of the devices, the chief's first.
        parts: The part of a core that each device has at most.
        kernels: Number of kernels, or of samples, on each device, for each
            layer by name.
        used: Of the devices, those that have kernels, or samples.
        reason: What the planner chose, and why, in a line; empty without one.
        predicted_s: Seconds of a step by the plan, if there is one.
        measured_bytes: Median bytes that travel between the processes in a
            step, gRPC's headers included.
        counted_on: What counted those bytes: the tasks' `"sockets"`; or, where
            Linux tells nothing of sockets, the `"loopback"` interface, which
            other programs use as well.
        theory_bytes: Bytes that must travel in a step.
        wire_dtype: The dtype in which feature maps travelled.
        export_difference: Largest difference between a prediction of the split
            model and the same prediction of its export in another process.
        cores: Number of cores that there were.
    """

    network: str
    weights: int
    batch_size: int
    trainings: tuple[Trained, ...]
    devices: tuple[str, ...]
    parts: tuple[float, ...]
    kernels: dict[str, tuple[int, ...]]
    used: tuple[str, ...]
    reason: str
    predicted_s: float | None
    measured_bytes: float
    counted_on: str
    theory_bytes: int
    wire_dtype: str
    export_difference: float
    cores: int

    @property
    def plain(self) -> Trained:
        """Plain Keras on the chief."""
        return self.trainings[0]

    @property
    def one(self) -> Trained:
        """The fastest form on the chief alone, which is the last of these."""
        return [t for t in self.trainings if t.devices == 1][-1]

    @property
    def split(self) -> Trained:
        """The training that is split between all devices."""
        return self.trainings[-1]

    @property
    def is_split(self) -> bool:
        """Whether several devices have kernels, or samples."""
        return len(self.used) > 1

    @property
    def bound(self) -> float:
        """How many times as fast as on the chief steps can be at most."""
        return min(sum(self.parts), self.cores)

    @property
    def bytes_ratio(self) -> float | None:
        """Measured bytes over those of theory; None if none must travel."""
        if not self.theory_bytes:
            return None
        return self.measured_bytes / self.theory_bytes

    def faster(self, training: Trained) -> float:
        """How many times as fast as plain Keras a training's steps are."""
        return self.plain.step_s / training.step_s

    def adds(self, training: Trained) -> float:
        """How many times as fast as on one device a training's steps are."""
        return self.one.step_s / training.step_s

    def differs(self, training: Trained, steps: int | None = None) -> float:
        """Largest relative difference of its first losses from plain Keras'.

        Args:
            training: One of the trainings.
            steps: The number of first losses; None for all.
        """
        relative = differences(self.plain.losses, training.losses)
        return float(max(relative[:steps]))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """The report of data that `to_dict` made, or that JSON made of it."""
        return pydantic.TypeAdapter(cls).validate_python(values)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON, with figures derived from it."""
        return {
            **dataclasses.asdict(self),
            "trainings": [
                {
                    **dataclasses.asdict(training),
                    "faster": self.faster(training),
                    "adds": self.adds(training),
                    "differs": self.differs(training),
                }
                for training in self.trainings
            ],
            "bound": self.bound,
            "bytes_ratio": self.bytes_ratio,
        }


def differences(these: Sequence[float], those: Sequence[float]) -> np.ndarray:
    """Difference of two losses in each step, relative to the larger."""
    one, other = np.array(these), np.array(those)
    larger = np.maximum(np.abs(one), np.abs(other))
    # Where both losses are 0, so is their difference.
    return np.abs(one - other) / np.where(larger == 0, 1, larger)


def in_words(devices: int) -> str:
    """A number of devices in words, such as "one device"."""
    return "one device" if devices == 1 else f"{devices} devices"
