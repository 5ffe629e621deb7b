"""`Plan`: how each layer is split, as plain data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tf_convpar.plans._form import FILTERS
from tf_convpar.plans._form import FORM
from tf_convpar.plans._form import SAMPLES
from tf_convpar.plans._form import DeviceEntry
from tf_convpar.plans._form import LayerEntry
from tf_convpar.plans._form import PlanFile
from tf_convpar.plans._form import PredictionEntry
from tf_convpar.plans._form import digest
from tf_convpar.plans._prediction import Prediction

CHIEF = "chief"


@dataclasses.dataclass(frozen=True)
class Plan(Mapping[str, Any]):
    """How each layer is split, and how long a step then takes.

    ```python
    plan = load("plan.json")
    plan["conv2d"]  # (300, 200): kernels of each device
    plan["conv2d_1"]  # {"split": "samples", "shards": (10, 6)}
    model = parallelize(model, plan)
    ```

    It is a mapping from the names of layers to what users may write for them:
    the kernels of each device, or a mapping that says that the layer is split
    by samples.

    Attributes:
        allocation: Number of kernels, or of samples, of each of `devices`, for
            each layer by name.
        devices: Names of the devices, the chief's first.
        prediction: The predicted step; None if the counts were changed by hand
            and no calibration says what that does.
        single_s: Seconds of the step on one device alone, by the device's name,
            for each that has the memory.
        equal_s: Seconds of the step with equal shares of each layer; None if
            they do not fit, or if that is not known.
        reason: Why the layers are split, or why they are not.
        fingerprint: Hash of the network's layers and their shapes.
        memory_bytes: Memory of each device; None for devices without a limit.
        layer_bytes: Two numbers for each layer by name: the bytes on every
            device that has any of its kernels, and the bytes for each kernel.
        splits: `"samples"` or `"filters"` for each layer by name. Layers that
            are not named are split by filters.
    """

    allocation: Mapping[str, tuple[int, ...]]
    devices: tuple[str, ...]
    prediction: Prediction | None
    single_s: Mapping[str, float]
    equal_s: float | None
    reason: str
    fingerprint: str
    memory_bytes: tuple[int | None, ...]
    layer_bytes: Mapping[str, tuple[int, int]]
    splits: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __getitem__(self, layer: str) -> Any:
        shards = self.allocation[layer]
        if self.splits.get(layer) == SAMPLES:
            return {"split": SAMPLES, "shards": shards}
        return shards

    def __iter__(self) -> Iterator[str]:
        return iter(self.allocation)

    def __len__(self) -> int:
        return len(self.allocation)

    def way(self, layer: str) -> str:
        """How a layer is split: by `"filters"` or by `"samples"`.

        It is `"chief"` if the layer is not split and the chief has all of it.
        """
        if not any(self.allocation[layer][1:]):
            return CHIEF
        return self.splits.get(layer, FILTERS)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the devices that have any kernels or samples."""
        return tuple(
            name
            for d, name in enumerate(self.devices)
            if any(counts[d] for counts in self.allocation.values())
        )

    @property
    def best_single(self) -> tuple[str, float] | None:
        """Name of the fastest device alone, and the seconds of its step.

        It is None if no device has the memory.
        """
        if not self.single_s:
            return None
        name = min(self.single_s, key=self.single_s.__getitem__)
        return name, self.single_s[name]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a JSON file for `load`, whole or not at all.

        ```python
        plan.save("plan.json")
        load("plan.json") == plan  # True
        ```

        Raises:
            ValueError: `load` would refuse it; nothing is written.
            OSError: The file cannot be written.
        """
        FORM.save(self._file(), path)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        return FORM.plain(self._file())

    def _file(self) -> PlanFile:
        prediction = None
        if self.prediction is not None:
            prediction = PredictionEntry(
                digest(self.allocation, self.splits), **vars(self.prediction)
            )
        return PlanFile(
            fingerprint=self.fingerprint,
            reason=self.reason,
            devices=tuple(
                DeviceEntry(name, memory, self.single_s.get(name))
                for name, memory in zip(
                    self.devices, self.memory_bytes, strict=True
                )
            ),
            layers=tuple(
                LayerEntry(
                    name,
                    self.splits.get(name, FILTERS),
                    sum(counts),
                    counts,
                    *self.layer_bytes[name],
                )
                for name, counts in self.allocation.items()
            ),
            equal_s=self.equal_s,
            prediction=prediction,
        )
