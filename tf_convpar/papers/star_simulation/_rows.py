"""The row of one simulated cluster in a sweep, and its columns in tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar.machines import short
from tf_convpar.papers.star_simulation._describe import convolutions_s
from tf_convpar.planner.simulation import Columns
from tf_convpar.planner.simulation import Row
from tf_convpar.planner.star import PHASES
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import allocate
from tf_convpar.planner.star import compute_s
from tf_convpar.planner.star import predict
from tf_convpar.planner.star import single_s
from tf_convpar.planner.star.first_guesses import equal
from tf_convpar.planner.star.first_guesses import singles
from tf_convpar.planner.vary import Value
from tf_convpar.plans import Prediction
from tf_convpar.plans import busiest


@dataclasses.dataclass(frozen=True)
class SimulationRow(Row):
    """One simulated cluster, with the plan that is best for it.

    Attributes:
        devices: Number of devices.
        used: Number of devices that have kernels.
        step_s: Seconds of a step by the plan.
        chief_s: Seconds of a step on the chief alone.
        single_s: Seconds of a step with all kernels on the one device that is
            best for that, and the rest of the network on the chief.
        single: Name of that device.
        equal_s: Seconds of a step with equal numbers of kernels on all devices.
        ideal: Speedup over the chief alone by Amdahl's law: devices split every
            pass in proportion to their speeds, and links take no time.
        capacity: Speed of all devices together on the convolutions, relative
            to the chief's.
        sent_bytes: Bytes of a step over all links.
        busiest_device: Name of the device with the most to do.
        device_busy: Part of the step in which that device is busy.
        busiest_link: Name of the link with the most to do; empty if nothing is
            sent.
        link_busy: Part of the step in which that link is busy.
        joules: Energy of a step on all devices, in joules; None if the power
            of a device is not known.
        joules_by_device: Energy of a step in joules, by the names of the
            devices whose power is known.
    """

    devices: int
    used: int
    step_s: float
    chief_s: float
    single_s: float
    single: str
    equal_s: float
    ideal: float
    capacity: float
    sent_bytes: int
    busiest_device: str
    device_busy: float
    busiest_link: str
    link_busy: float
    joules: float | None
    joules_by_device: Mapping[str, float]

    @property
    def speedup(self) -> float:
        """Speedup over the chief alone."""
        return self.chief_s / self.step_s

    @property
    def speedup_of_best(self) -> float:
        """Speedup over the best single device."""
        return self.single_s / self.step_s

    @property
    def efficiency(self) -> float:
        """Speedup divided by capacity: for equal devices, by their number."""
        return self.speedup / self.capacity

    @property
    def gain(self) -> float:
        """Time of an equal split's step, divided by that of the plan's."""
        return self.equal_s / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ratios = ("speedup", "speedup_of_best", "efficiency", "gain")
        return (
            dataclasses.asdict(self)
            | super().to_dict()
            | {name: getattr(self, name) for name in ratios}
        )


def row_of(
    calibration: StarCalibration, value: Value, label: str, quantum: int | None
) -> SimulationRow:
    """The row of a cluster.

    Args:
        calibration: Cluster with the network.
        value: Value of the setting that varies.
        label: The value as text for readers.
        quantum: Number of kernels in a unit that is given out; None for the
            calibration's.
    """
    devices = calibration.devices
    counts = allocate(calibration, quantum)
    prediction = predict(calibration, counts)
    chief_s = predict(calibration, next(singles(calibration))).step_s
    # The chief is a device alone even if it lacks the memory.
    alone = {devices[0].name: chief_s, **single_s(calibration)}
    single = min(alone, key=alone.__getitem__)
    busy = prediction.busy()
    device, device_busy = _most(prediction, links=False)
    link, link_busy = _most(prediction, links=True)
    joules = {
        d.name: d.watts * busy.get(d.name, 0.0)
        + d.idle_watts * (prediction.step_s - busy.get(d.name, 0.0))
        for d in devices
        if d.watts is not None
    }
    chief_conv_s = convolutions_s(calibration, devices[0])
    return SimulationRow(
        value=value if isinstance(value, (int, float)) else label,
        label=label,
        devices=len(devices),
        used=sum(any(n) for n in zip(*counts.values(), strict=True)),
        step_s=prediction.step_s,
        chief_s=chief_s,
        single_s=alone[single],
        single=single,
        equal_s=predict(calibration, equal(calibration)).step_s,
        ideal=amdahl(calibration),
        capacity=sum(
            chief_conv_s / convolutions_s(calibration, d) for d in devices
        ),
        sent_bytes=sum(prediction.sent_bytes.values()),
        busiest_device=device,
        device_busy=device_busy,
        busiest_link=link,
        link_busy=link_busy,
        joules=sum(joules.values()) if len(joules) == len(devices) else None,
        joules_by_device=joules,
    )


def amdahl(calibration: StarCalibration) -> float:
    """The largest speedup of all devices over the chief alone.

    It is that of passes on which every device works without waiting, in
    proportion to its speed, and for which nothing has to travel:

        S = (rest + sum t_chief) / (rest + sum 1 / (sum over d of 1 / t_d))

    The outer sums are over the passes. `t_d` is the seconds of a whole pass on
    device `d`. For `n` equal devices and a share `f` of convolutions this is
    Amdahl's law, 1 / (1 - f + f / n). No plan is faster where time is
    proportional to the number of kernels.
    """
    alone = split = calibration.rest_s
    for convolution in calibration.network:
        for phase in PHASES:
            times = [
                compute_s(
                    calibration, d, convolution, phase, convolution.filters
                )
                for d in calibration.devices
            ]
            alone += times[0]
            if min(times) > 0:
                split += 1 / sum(1 / t for t in times)
    return alone / split if split else 1.0


def columns(
    sweep: str, rows: Sequence[SimulationRow]
) -> Columns[SimulationRow]:
    """Columns for the rows of a sweep; with the value they fit 80 columns."""
    chosen: list[tuple[str, Callable[[SimulationRow], str]]] = [
        ("Step,\nms", lambda r: _number(1e3 * r.step_s)),
        ("Speed-\nup", lambda r: f"{r.speedup:.2f}"),
        ("Ideal", lambda r: f"{r.ideal:.2f}"),
        ("Eff.", lambda r: f"{r.efficiency:.0%}"),
        (
            "In\nuse",
            lambda r: (
                f"{r.used}" if sweep == "devices" else f"{r.used}/{r.devices}"
            ),
        ),
        ("Sent,\nMB", lambda r: _number(r.sent_bytes / 1e6)),
        (
            "Busiest\ndevice",
            lambda r: f"{short(r.busiest_device)} {r.device_busy:.0%}",
        ),
        ("Links\nbusy", lambda r: f"{r.link_busy:.0%}"),
    ]
    if sweep == "heterogeneity":
        chosen[2:4] = [
            ("Equal\nsplit, ms", lambda r: _number(1e3 * r.equal_s)),
            ("Gain", lambda r: _number(r.gain)),
        ]
    # Where the chief is the best single device, it says nothing new.
    if len({row.single for row in rows}) > 1 or any(
        row.single_s < row.chief_s for row in rows
    ):
        chosen.insert(2, ("Over\nbest", lambda r: f"{r.speedup_of_best:.2f}"))
    if any(row.joules is not None for row in rows):
        chosen.append(("Joules", lambda r: _number(r.joules)))
    return chosen


def _number(value: float | None) -> str:
    """A number of three digits or more, without exponent; empty for None."""
    if value is None:
        return ""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 3)}f}"


def _most(prediction: Prediction, *, links: bool) -> tuple[str, float]:
    """Name of the busiest device or link, and the busy part of the step."""
    where, seconds = busiest(prediction, links=links) or ("", 0.0)
    return where, min(seconds / prediction.step_s, 1.0) if where else 0.0
