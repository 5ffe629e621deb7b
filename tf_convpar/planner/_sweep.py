"""Plans for clusters that nobody has, while one setting varies."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.planner import _plan
from tf_convpar.planner import _simulate
from tf_convpar.planner import descriptions
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._simulate import DEVICES
from tf_convpar.planner.call_ways import CHIEF
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.descriptions import LATENCY
from tf_convpar.planner.descriptions import LINK
from tf_convpar.planner.simulation import Columns
from tf_convpar.planner.simulation import Row
from tf_convpar.planner.simulation import Simulation
from tf_convpar.planner.vary import Sweep
from tf_convpar.planner.vary import mbit
from tf_convpar.planner.vary import varied
from tf_convpar.planner.vary import whole_number
from tf_convpar.planner.vary import with_bandwidth
from tf_convpar.planner.vary import with_devices
from tf_convpar.plans import Plan
from tf_convpar.sharding import calls_of
from tf_convpar.units import seconds_text

VALUES: Mapping[str, tuple[float, ...]] = {
    "devices": (1, 2, 4, 8),
    "bandwidth": mbit(100, 300, 1e3, 2.5e3, 1e4),
    "batch": (8, 16, 32, 64, 128),
}


@dataclasses.dataclass(frozen=True)
class SweepRow(Row):
    """The best plan for one cluster.

    Attributes:
        plan: Best plan for that cluster.
    """

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
        prediction = self.plan.prediction
        return (
            max(prediction.received().values(), default=0) if prediction else 0
        )

    @property
    def ways(self) -> dict[str, int]:
        """Number of convolutions that go each way, by the way's name."""
        return dict(collections.Counter(map(self.plan.way, self.plan)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a speedup over nothing is None."""
        single = self.plan.best_single
        return super().to_dict() | {
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


def _alone(row: SweepRow) -> str:
    single = row.plan.best_single
    return seconds_text(single[1]) if single else ""


COLUMNS: Columns[SweepRow] = (
    ("Step", lambda r: seconds_text(r.step_s)),
    ("Speed-\nup", lambda r: f"{r.speedup:.2f}"),
    ("Best\nalone", _alone),
    ("In\nuse", lambda r: f"{len(r.plan.used)}/{len(r.plan.devices)}"),
    ("MB into\none device", lambda r: f"{r.received_bytes / 1e6:.1f}"),
    ("By\nsamples", lambda r: str(r.ways.get(SAMPLES, 0))),
    ("By\nfilters", lambda r: str(r.ways.get(FILTERS, 0))),
    ("On the\nchief", lambda r: str(r.ways.get(CHIEF, 0))),
)


def with_batch(calibration: Calibration, value: float) -> Calibration:
    """The calibration with another number of samples.

    Raises:
        ValueError: The value is no number of samples.
    """
    batch = whole_number("batch", value, "sample")
    return dataclasses.replace(calibration, batch=batch)


SWEEPS: Mapping[str, Sweep[Calibration]] = {
    "devices": functools.partial(with_devices, between=True),
    "bandwidth": with_bandwidth,
    "batch": with_batch,
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
    about: str = "",
    report: Callable[[str], None] = lambda label: None,
) -> Simulation[SweepRow]:
    """Plans a model for each value of one setting.

    ```python
    sweep(model, "devices", [1, 2, 4, 8], "8xcpu:100GFLOPS").rows[-1].speedup
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
        about: Model and cluster in a line of text.
        report: Function that is called with each value, as text for readers,
            before it is planned.

    Returns:
        A row for each value.

    Raises:
        ValueError: The setting is unknown, a value is not possible, or
            `simulate` would raise it.
        RuntimeError: A plan has no proof within half a minute.
    """
    settings = Settings(wire_dtype, moments)
    graph = calls_of(model)
    described = descriptions.devices(devices)
    if len(described) == 1 and over == "devices":
        # A copy has the links of the device that it is a copy of.
        described *= 2
        described[1] = dataclasses.replace(
            described[0], name=described[0].name.replace(":0", ":1")
        )
    rate, delay = descriptions.link(link, latency)
    calibration = _simulate.describe(graph, described, rate, delay, batch_size)
    wanted = VALUES.get(over, ()) if values is None else values
    rows = tuple(
        SweepRow(value, label, _plan.plan_graph(graph, changed, settings))
        for value, label, changed in varied(
            calibration, over, SWEEPS, wanted, report
        )
    )
    return Simulation(over, rows, about, COLUMNS)
