"""Plans for clusters that nobody has, over one thing that changes."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.planner import _described
from tf_convpar.planner import _graph
from tf_convpar.planner import _plan
from tf_convpar.planner import _simulate
from tf_convpar.planner import _units
from tf_convpar.planner._described import LATENCY
from tf_convpar.planner._described import LINK
from tf_convpar.planner._described import Described
from tf_convpar.planner._simulate import DEVICES
from tf_convpar.plans import Plan

SWEEPS = ("devices", "bandwidth", "batch")
_MBIT = 1e6 / 8
VALUES: Mapping[str, tuple[float, ...]] = {
    "devices": (1, 2, 4, 8),
    "bandwidth": tuple(n * _MBIT for n in (100, 300, 1e3, 2.5e3, 1e4)),
    "batch": (8, 16, 32, 64, 128),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The best plan for one cluster.

    Attributes:
        value: Of what changes: devices, bytes per second, or samples.
        label: The same for readers.
        plan: The plan.
    """

    value: float
    label: str
    plan: Plan

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.plan.prediction.step_s if self.plan.prediction else 0.0

    @property
    def speedup(self) -> float:
        """Over the best single device."""
        single = self.plan.best_single
        return single[1] / self.step_s if single else math.nan

    @property
    def received_bytes(self) -> int:
        """Into the device that receives most."""
        found = self.plan.prediction
        return max(found.received().values(), default=0) if found else 0

    @property
    def ways(self) -> dict[str, int]:
        """How many convolutions go each way."""
        return dict(collections.Counter(map(self.plan.way, self.plan)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without infinities, which JSON has no word for."""
        single = self.plan.best_single
        return {
            "value": self.label if math.isinf(self.value) else self.value,
            "label": self.label,
            "devices": len(self.plan.devices),
            "used": len(self.plan.used),
            "step_s": self.step_s,
            "single": single and single[0],
            "single_s": single and single[1],
            "speedup": self.speedup,
            "received_bytes": self.received_bytes,
            "ways": self.ways,
            "reason": self.plan.reason,
        }


def sweep(
    model: keras.Model,
    over: str = "devices",
    values: Sequence[float] | None = None,
    devices: str = DEVICES,
    link: str = LINK,
    latency: str = LATENCY,
    batch_size: int = 32,
    wire_dtype: str | None = None,
    report: Callable[[str], None] = lambda label: None,
) -> tuple[Row, ...]:
    """Plans a model for each value of one thing.

    ```python
    sweep(model, "devices", [1, 2, 4, 8], "8xcpu:100GFLOPS")[-1].speedup
    ```

    Args:
        model: As for `simulate`.
        over: `"devices"`: the first ones, then copies of the last;
            `"bandwidth"`: of every link, in bytes per second; `"batch"`:
            samples of a step.
        values: Of it; those in `VALUES` by default.
        devices: As for `simulate`.
        link: Likewise.
        latency: Likewise.
        batch_size: Likewise.
        wire_dtype: Likewise.
        report: Called with each value, for readers, before it is planned.

    Returns:
        A row for each value.

    Raises:
        ValueError: A value is not possible, or as for `simulate`.
        RuntimeError: As for `simulate`.
    """
    if over not in SWEEPS:
        raise ValueError(
            f"Expected a sweep over one of {', '.join(SWEEPS)}. Received: "
            f"{over!r}."
        )
    wanted = VALUES[over] if values is None else values
    low = [value for value in wanted if not value > 0]
    if low or not wanted:
        raise ValueError(f"Expected {over} above 0. Received: {list(wanted)}.")
    graph = _graph.of_model(model)
    described = _described.devices(devices)
    rate, delay = _described.link(link, latency)
    rows = []
    for value in wanted:
        label = f"{value:g}"
        now, bytes_per_s, samples = described, rate, batch_size
        if over == "devices":
            now = first(described, int(value))
        elif over == "bandwidth":
            bytes_per_s, label = value, _units.link_words(value)
        else:
            samples = int(value)
        report(label)
        found = _simulate.describe(graph, now, bytes_per_s, delay, samples)
        made = _plan.plan_graph(graph, found, wire_dtype)
        rows.append(Row(value, label, made))
    return tuple(rows)


def first(devices: Sequence[Described], number: int) -> list[Described]:
    """So many devices; beyond those described, copies of the last.

    ```python
    first(_described.devices("a:1GFLOPS,b:2GFLOPS"), 3)[2].name  # "b:1"
    ```
    """
    found = list(devices[:number])
    kind, _, last = devices[-1].name.rpartition(":")
    for i in range(number - len(found)):
        name = f"{kind}:{int(last) + 1 + i}"
        found.append(dataclasses.replace(devices[-1], name=name))
    return found
