"""What a plan is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tf_convpar.files import _checked_json
from tf_convpar.plans._prediction import Prediction

KIND = "plan"
CHIEF = "chief"
FILTERS = "filters"
SAMPLES = "samples"
# Of the file's form.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Plan(Mapping[str, Any]):
    """How each layer is split, and the step that comes of it.

    ```python
    plan = load("plan.json")
    plan["conv2d"]  # (300, 200): kernels of each device
    plan["conv2d_1"]  # {"split": "samples", "shards": (10, 6)}
    model = parallelize(model, plan)
    ```

    A mapping from the names of layers to what users may write of them: kernels
    per device, or a mapping that says that they are split by samples.

    Attributes:
        allocation: For each layer kernels, or samples, of each of `devices`.
        devices: Their names, the chief's first.
        prediction: The step; None if the counts were changed by hand and no
            calibration says what that does.
        single_s: Seconds of the step with all kernels on one device, for
            each that has the memory.
        equal_s: With equal shares of each layer; None if they do not fit.
        reason: Why kernels are split, or why they are not.
        fingerprint: Of the network: a hash of its layers and their shapes.
        memory_bytes: What each device has; None for those without a limit.
        layer_bytes: For each layer, what a device needs that has any of its
            kernels, and for each of them.
        splits: `"samples"` or `"filters"`, for each layer; filters for those
            that are not named.
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
        """How a layer is split: by `"filters"` or `"samples"`.

        `"chief"` if it is not, and the chief has all of it.
        """
        if not any(self.allocation[layer][1:]):
            return CHIEF
        return self.splits.get(layer, FILTERS)

    @property
    def used(self) -> tuple[str, ...]:
        """The devices that have kernels, or samples."""
        return tuple(
            name
            for d, name in enumerate(self.devices)
            if any(counts[d] for counts in self.allocation.values())
        )

    @property
    def best_single(self) -> tuple[str, float] | None:
        """The fastest device alone, and the seconds of its step.

        None if none has the memory.
        """
        if not self.single_s:
            return None
        name = min(self.single_s, key=self.single_s.__getitem__)
        return name, self.single_s[name]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a JSON file that `load` reads, whole or not at all.

        ```python
        plan.save("plan.json")
        load("plan.json") == plan  # True
        ```
        """
        _checked_json.write(self.to_dict(), path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        prediction = None
        if self.prediction is not None:
            prediction = {
                "of": digest(self.allocation, self.splits),
                "step_s": float(self.prediction.step_s),
                "sent_bytes": {
                    link: int(count)
                    for link, count in self.prediction.sent_bytes.items()
                },
                "spans": [
                    dataclasses.asdict(span) for span in self.prediction.spans
                ],
            }
        return {
            "kind": KIND,
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "reason": self.reason,
            "devices": [
                {
                    "name": name,
                    "memory_bytes": memory,
                    "single_s": self.single_s.get(name),
                }
                for name, memory in zip(
                    self.devices, self.memory_bytes, strict=True
                )
            ],
            "layers": [
                {
                    "name": name,
                    "split": self.splits.get(name, FILTERS),
                    "of": sum(counts),
                    "shards": list(counts),
                    "bytes": self.layer_bytes[name][0],
                    "bytes_per_shard": self.layer_bytes[name][1],
                }
                for name, counts in self.allocation.items()
            ],
            "equal_s": self.equal_s,
            "prediction": prediction,
        }


def over_memory(
    counts: Mapping[str, tuple[int, ...]],
    devices: tuple[str, ...],
    memory_bytes: tuple[int | None, ...],
    layer_bytes: Mapping[str, tuple[int, int]],
) -> str | None:
    """Says which device would need more memory than it has, None if none."""
    for d, (device, limit) in enumerate(
        zip(devices, memory_bytes, strict=True)
    ):
        needed = sum(
            layer_bytes[layer][0] + of_layer[d] * layer_bytes[layer][1]
            for layer, of_layer in counts.items()
            if of_layer[d]
        )
        if limit is not None and needed > limit:
            return f"{device} has {limit} bytes, and would need {needed}"
    return None


def digest(
    allocation: Mapping[str, tuple[int, ...]], splits: Mapping[str, str]
) -> str:
    """Tells whether counts and splits are those that a prediction is of."""
    text = json.dumps(
        [[k, splits.get(k, FILTERS), list(v)] for k, v in allocation.items()]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
