"""What a demo found out, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tf_convpar.demo.report import differences


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        losses: Loss of every training step.
        step_s: Median seconds of a step.
        held_out_loss: Loss after the last step, on images never trained on.
        held_out_accuracy: Accuracy after the last step, on the same images.
    """

    losses: tuple[float, ...]
    step_s: float
    held_out_loss: float
    held_out_accuracy: float


@dataclasses.dataclass(frozen=True)
class Report:
    """A training on one device beside the same training on several.

    Attributes:
        one: The training on one device.
        split: The same training with its kernels split.
        shards: Number of kernels on each device, the chief's first, for each
            layer by name.
        measured_bytes: Median bytes that travel between the processes in a
            step, gRPC's headers included.
        counted_on: What counted those bytes: the tasks' `"sockets"`; or, where
            Linux tells nothing of sockets, the `"loopback"` interface, which
            other programs use as well.
        theory_bytes: Bytes of the feature maps and gradients that must travel
            in a step.
        export_difference: Largest difference between a prediction of the model
            and the same prediction of its export in another process.
        wire_dtype: The dtype in which feature maps travelled.
        cores: Number of cores that there were for the devices.
    """

    one: Run
    split: Run
    shards: dict[str, tuple[int, ...]]
    measured_bytes: float
    counted_on: str
    theory_bytes: int
    export_difference: float
    wire_dtype: str
    cores: int

    @property
    def devices(self) -> int:
        """Number of processes that the kernels were split over."""
        return len(next(iter(self.shards.values())))

    @property
    def speedup(self) -> float:
        """Speedup of the median step."""
        return self.one.step_s / self.split.step_s

    @property
    def differences(self) -> np.ndarray:
        """Difference of both losses in each step, relative to the larger."""
        return differences(self.one.losses, self.split.losses)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """The report of data that `to_dict` made, or that JSON made of it."""
        own = {f.name: values[f.name] for f in dataclasses.fields(cls)}
        return cls(
            **own | {"one": Run(**own["one"]), "split": Run(**own["split"])}
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON, with figures derived from it."""
        return {
            **dataclasses.asdict(self),
            "devices": self.devices,
            "speedup": self.speedup,
            # Nothing has to travel where the chief has every kernel.
            "bytes_ratio": (
                self.measured_bytes / self.theory_bytes
                if self.theory_bytes
                else None
            ),
            "largest_loss_difference": float(
                np.max(np.abs(np.subtract(self.one.losses, self.split.losses)))
            ),
            "largest_relative_loss_difference": float(np.max(self.differences)),
        }
