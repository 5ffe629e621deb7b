"""Plans for clusters that nobody has, while one setting varies."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar import units
from tf_convpar.planner import _plan
from tf_convpar.planner import _simulate
from tf_convpar.planner import descriptions
from tf_convpar.planner._simulate import DEVICES
from tf_convpar.planner._ways import Settings
from tf_convpar.planner.descriptions import LATENCY
from tf_convpar.planner.descriptions import LINK
from tf_convpar.planner.descriptions import Described
from tf_convpar.plans import Plan
from tf_convpar.sharding import calls_of

SWEEPS = ("devices", "bandwidth", "batch")
_MBIT = 1e6 / 8
VALUES: Mapping[str, tuple[float, ...]] = {
    "devices": (1, 2, 4, 8),
    "bandwidth": tuple(n * _MBIT for n in (100, 300, 1e3, 2.5e3, 1e4)),
    "batch": (8, 16, 32, 64, 128),
}


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """The best plan for one cluster.

    Attributes:
        value: Value of the setting that varies: a number of devices, bytes per
            second, or samples.
        label: The value as text for readers.
        plan: Best plan for that value.
    """

    value: float
    label: str
    plan: Plan

    @property
    def step_s(self) -> float:
        """Predicted seconds of the step."""
        return self.plan.prediction.step_s if self.plan.prediction else 0.0

    @property
    def speedup(self) -> float:
        """Speedup over the best single device."""
        single = self.plan.best_single
        return single[1] / self.step_s if single else math.nan

    @property
    def received_bytes(self) -> int:
        """Bytes of a step into the device that receives most."""
        found = self.plan.prediction
        return max(found.received().values(), default=0) if found else 0

    @property
    def ways(self) -> dict[str, int]:
        """Number of convolutions that go each way, by the way's name."""
        return dict(collections.Counter(map(self.plan.way, self.plan)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON has neither infinity nor NaN.

        An infinite value is its label, and a speedup over nothing is None.
        """
        single = self.plan.best_single
        return {
            "value": self.label if math.isinf(self.value) else self.value,
            "label": self.label,
            "devices": len(self.plan.devices),
            "used": len(self.plan.used),
            "step_s": self.step_s,
            "single": single and single[0],
            "single_s": single and single[1],
            "speedup": self.speedup if single else None,
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
    moments: str = "all",
    report: Callable[[str], None] = lambda label: None,
) -> tuple[SweepRow, ...]:
    """Plans a model for each value of one setting.

    ```python
    sweep(model, "devices", [1, 2, 4, 8], "8xcpu:100GFLOPS")[-1].speedup
    ```

    Args:
        model: Model to plan; see `simulate`.
        over: Setting that varies. `"devices"` is the number of devices: the
            first ones, then copies of the last. `"bandwidth"` is the rate of
            every link, in bytes per second. `"batch"` is the samples of a step.
        values: Values of that setting; those in `VALUES` by default.
        devices: Description of the devices; see `simulate`.
        link: Rate of each device's interface; see `simulate`.
        latency: Time of a small message; see `simulate`.
        batch_size: Samples of a step.
        wire_dtype: Dtype in which tensors travel; None for their own.
        moments: As for `parallelize`.
        report: Function that is called with each value, as text for readers,
            before it is planned.

    Returns:
        A row for each value.

    Raises:
        ValueError: The setting is unknown, a value is not possible, or
            `simulate` would raise it.
        RuntimeError: A plan has no proof within half a minute.
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
    settings = Settings(wire_dtype, moments)
    graph = calls_of(model)
    described = descriptions.devices(devices)
    rate, delay = descriptions.link(link, latency)
    rows = []
    for value in wanted:
        label = f"{value:g}"
        now, bytes_per_s, samples = described, rate, batch_size
        if over == "devices":
            now = first(described, int(value))
        elif over == "bandwidth":
            bytes_per_s, label = value, units.link_words(value)
        else:
            samples = int(value)
        report(label)
        found = _simulate.describe(graph, now, bytes_per_s, delay, samples)
        made = _plan.plan_graph(graph, found, settings)
        rows.append(SweepRow(value, label, made))
    return tuple(rows)


def first(devices: Sequence[Described], number: int) -> list[Described]:
    """The first `number` devices; beyond those described, copies of the last.

    ```python
    first(descriptions.devices("a:1GFLOPS,b:2GFLOPS"), 3)[2].name  # "b:1"
    ```
    """
    found = list(devices[:number])
    kind, _, last = devices[-1].name.rpartition(":")
    for i in range(number - len(found)):
        name = f"{kind}:{int(last) + 1 + i}"
        found.append(dataclasses.replace(devices[-1], name=name))
    return found
