"""What a demo found out, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        losses: Of every step.
        step_s: Median seconds of a step.
        held_out_loss: After the last step, on images never trained on.
        held_out_accuracy: Likewise.
    """

    losses: tuple[float, ...]
    step_s: float
    held_out_loss: float
    held_out_accuracy: float


@dataclasses.dataclass(frozen=True)
class Report:
    """One device beside several.

    Attributes:
        one: The training on one device.
        split: The same training, its kernels split.
        shards: Kernels on each device, the chief first, of each layer.
        measured_bytes: Between processes in a step, median, with gRPC's
            headers.
        counted_on: What counted them: the tasks' `"sockets"`, or where Linux
            tells nothing of these the `"loopback"` interface, which others
            use as well.
        theory_bytes: What the feature maps and gradients that must travel
            hold.
        export_difference: Largest between a prediction of the model and of
            its export in another process.
        wire_dtype: The dtype that feature maps travelled in.
        cores: How many there were for the devices.
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
        """How many processes the kernels were split over."""
        return len(next(iter(self.shards.values())))

    @property
    def speedup(self) -> float:
        """Of the median step."""
        return self.one.step_s / self.split.step_s

    @property
    def differences(self) -> np.ndarray:
        """Between the losses of each step, relative to the larger one."""
        one, split = np.array(self.one.losses), np.array(self.split.losses)
        larger = np.maximum(np.abs(one), np.abs(split))
        # Where both are 0 so is their difference.
        return np.abs(one - split) / np.where(larger == 0, 1, larger)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        """What `to_dict` made, or JSON of it."""
        own = {f.name: values[f.name] for f in dataclasses.fields(cls)}
        return cls(
            **own | {"one": Run(**own["one"]), "split": Run(**own["split"])}
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
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
