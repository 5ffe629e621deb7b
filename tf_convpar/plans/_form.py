"""The content of a plan's file; `docs/plan-files.md` has it as a table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping

from tf_convpar.files import Checked
from tf_convpar.files import Count
from tf_convpar.files import Form
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Quantity
from tf_convpar.files import Some
from tf_convpar.files import Unexpected
from tf_convpar.files import check_distinct
from tf_convpar.plans._prediction import PredictedSpan

FILTERS = "filters"
SAMPLES = "samples"


@dataclasses.dataclass(frozen=True)
class DeviceEntry(Checked):
    """A device's limit, and a step on it alone."""

    name: Name
    memory_bytes: Natural | None
    single_s: Quantity | None


@dataclasses.dataclass(frozen=True)
class LayerEntry(Checked):
    """A layer's split, which people may edit."""

    name: Name
    split: str
    of: Count
    shards: tuple[Natural, ...]
    bytes: Natural
    bytes_per_shard: Natural

    def check(self) -> None:
        """Checks that the split is one of two."""
        if self.split not in (FILTERS, SAMPLES):
            raise Unexpected(f"{FILTERS!r} or {SAMPLES!r}", "split")


@dataclasses.dataclass(frozen=True)
class PredictionEntry(Checked):
    """A step, and the `digest` of the layers that it is of."""

    of: str
    step_s: Quantity
    sent_bytes: Mapping[str, Natural]
    spans: tuple[PredictedSpan, ...]


@dataclasses.dataclass(frozen=True)
class PlanFile(Checked):
    """The whole file."""

    fingerprint: Name
    reason: str
    devices: Some[DeviceEntry]
    layers: tuple[LayerEntry, ...]
    equal_s: Quantity | None
    prediction: PredictionEntry | None

    def check(self) -> None:
        """Shards are of these devices, sum up, and fit their memory."""
        check_distinct([d.name for d in self.devices], "devices", "devices")
        check_distinct([row.name for row in self.layers], "layers", "layers")
        for i, layer in enumerate(self.layers):
            total = sum(layer.shards)
            if len(layer.shards) != len(self.devices) or total != layer.of:
                what = "kernels" if layer.split == FILTERS else "samples"
                raise Unexpected(
                    f"{len(self.devices)} numbers of {what}, one per device, "
                    f"that sum to {layer.of},",
                    *("layers", i, "shards"),
                    received=f"{list(layer.shards)}, which sum to {total}",
                )
        problem = over_memory(
            {layer.name: layer.shards for layer in self.layers},
            tuple(device.name for device in self.devices),
            tuple(device.memory_bytes for device in self.devices),
            {row.name: (row.bytes, row.bytes_per_shard) for row in self.layers},
        )
        if problem:
            raise Unexpected(
                "kernels that fit the memory of devices",
                "layers",
                received=problem,
            )


FORM = Form(PlanFile, "plan", 2, "Plan again")


def over_memory(
    counts: Mapping[str, tuple[int, ...]],
    devices: tuple[str, ...],
    memory_bytes: tuple[int | None, ...],
    layer_bytes: Mapping[str, tuple[int, int]],
) -> str | None:
    """Says which device needs more memory than it has; None if none does.

    Args:
        counts: Number of kernels of each device, for each layer by name.
        devices: Names of the devices.
        memory_bytes: Memory of each device; None for those without a limit.
        layer_bytes: Bytes of each layer; see `Plan`.
    """
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
    """Hash of counts and splits.

    It tells whether they are still those that a prediction was made for.
    """
    text = json.dumps(
        [[k, splits.get(k, FILTERS), list(v)] for k, v in allocation.items()]
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
