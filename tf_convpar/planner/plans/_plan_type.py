"""What a plan is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

from tf_convpar.planner._cost import Prediction
from tf_convpar.planner._network import Network

_FULL_NAME = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/device:(\w+:\d+)")


@dataclasses.dataclass(frozen=True)
class Plan(Mapping[str, tuple[int, ...]]):
    """Kernels of each layer and device, and the step that comes of it.

    ```python
    plan = load("plan.json")
    plan["conv2d"]  # (300, 200)
    strategy = ConvParallelStrategy(plan=plan)
    ```

    A mapping from the names of layers to kernels per device.

    Attributes:
        allocation: For each layer a number of kernels for each of `devices`.
        devices: Their names, the chief's first.
        prediction: The step; None if the counts were changed by hand and no
            calibration says what that does.
        single_s: Seconds of the step with all kernels on one device, for
            each that has the memory.
        equal_s: With equal shares of each layer; None if they do not fit.
        reason: Why kernels are split, or why they are not.
        fingerprint: Of the network: `fingerprint`.
        memory_bytes: What each device has; None for those without a limit.
        layer_bytes: For each layer, what a device needs that has any of its
            kernels, and for each of them.
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

    def __getitem__(self, layer: str) -> tuple[int, ...]:
        return self.allocation[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.allocation)

    def __len__(self) -> int:
        return len(self.allocation)

    @property
    def used(self) -> tuple[str, ...]:
        """The devices that have kernels."""
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
        """Writes it to a JSON file that `load` reads."""
        # The file's module needs this one.
        from tf_convpar.planner.plans import _plan_file

        _plan_file.save(self, path)


def fingerprint(network: Network) -> str:
    """A hash of the layers and their shapes, whatever the batch."""
    shapes = [dataclasses.astuple(convolution) for convolution in network]
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]


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


def short(name: str) -> str:
    """A device, or a link's two, in a few words: `"worker 0 CPU:0"`."""
    return _FULL_NAME.sub(r"\1 \2 \3", name)


def busiest(prediction: Prediction, *, links: bool) -> tuple[str, float] | None:
    """The device or link with the most to do, and its seconds.

    None if nothing is sent.
    """
    busy = {
        where: seconds
        for where, seconds in prediction.busy().items()
        if (" -> " in where) == links
    }
    if not busy:
        return None
    where = max(busy, key=busy.__getitem__)
    return where, busy[where]


def seconds_text(seconds: float) -> str:
    """Seconds as people read them: `"1.23 s"`, `"45.6 ms"`."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms"
