"""Predicts steps on clusters that nobody has.

Each row has a calibration with one setting changed (`_vary`), the plan that is
best for it (`allocate`), and the step of that plan (`_cost`). This is what
`convpar plan` would say there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.planner import units
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._calibration import StarDevice
from tf_convpar.planner.star._cost import PHASES
from tf_convpar.planner.star._cost import Allocation
from tf_convpar.planner.star._cost import compute_s
from tf_convpar.planner.star._cost import memory_bytes
from tf_convpar.planner.star._cost import predict
from tf_convpar.planner.star.allocation import allocate
from tf_convpar.planner.star.simulation import _vary
from tf_convpar.planner.star.simulation._describe import convolutions_s
from tf_convpar.planner.star.simulation._result import Simulation
from tf_convpar.planner.star.simulation._row import SimulationRow
from tf_convpar.plans import Prediction

SWEEPS = ("devices", "bandwidth", "batch", "kernels", "heterogeneity")

# Value of a setting: a number, or the kernels of each convolution.
Value = float | Sequence[int]

_MBIT = 1e6 / 8
VALUES: Mapping[str, tuple[Value, ...]] = {
    "devices": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "bandwidth": tuple(
        n * _MBIT for n in (10, 30, 100, 300, 1e3, 2.5e3, 1e4, 4e4, 1e5)
    ),
    "batch": (16, 32, 64, 128, 256, 512, 1024),
    "kernels": ((50, 500), (150, 800), (300, 1000), (500, 1500)),
    "heterogeneity": (1, 2, 3, 4, 6, 8, 12, 16),
}


def simulate(
    calibration: StarCalibration,
    sweep: str = "devices",
    values: Sequence[Value] | None = None,
    quantum: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Simulation:
    """Predicts the step for each value of one setting.

    ```python
    cluster = describe(network((500, 1500)), "8xcpu:100GFLOPS", "10Gbit")
    simulate(cluster, "devices", [1, 2, 4, 8]).rows[-1].speedup
    ```

    Args:
        calibration: A calibration that was measured, or made by `describe`.
        sweep: Setting that varies. `"devices"` is the number of devices: the
            first ones, then copies of the last. `"bandwidth"` is the rate of
            every link, in bytes per second. `"batch"` is the images of a step;
            times of computing are in proportion. `"kernels"` are those of each
            convolution, for described devices. `"heterogeneity"` is how many
            times as fast as the last device the chief is; the sum of speeds
            stays.
        values: Values of that setting; those in `VALUES` by default.
        quantum: Number of kernels in a unit that is given out; the
            calibration's by default.
        report: Function that is called with each value, as text for readers,
            before it is planned.

    Returns:
        A row for each value.

    Raises:
        ValueError: The setting is unknown, a value is not possible, or the
            calibration says nothing about it.
    """
    if sweep not in SWEEPS:
        raise ValueError(
            f"Expected one of {', '.join(SWEEPS)}. Received: {sweep!r}."
        )
    rows = []
    values = VALUES[sweep] if values is None else values
    for value in values:
        label = label_of(sweep, value)
        if report is not None:
            report(label)
        changed = _varied(calibration, sweep, value)
        rows.append(_row(changed, value, label, quantum))
    return Simulation(sweep, tuple(rows), _about(calibration, sweep, values))


def label_of(sweep: str, value: Value) -> str:
    """A value as text for readers."""
    if not isinstance(value, (int, float)):
        return ":".join(str(n) for n in value)
    return units.link_words(value) if sweep == "bandwidth" else f"{value:g}"


def equal_shares(calibration: StarCalibration) -> dict[str, tuple[int, ...]]:
    """The allocation of equal numbers of kernels, except for remainders."""
    devices = len(calibration.devices)
    return {
        c.name: tuple(
            c.filters // devices + (d < c.filters % devices)
            for d in range(devices)
        )
        for c in calibration.network
    }


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


def _varied(
    calibration: StarCalibration, sweep: str, value: Value
) -> StarCalibration:
    """The calibration with one thing changed."""
    if sweep == "kernels":
        if isinstance(value, (int, float)):
            value = (int(value),)
        return _vary.with_kernels(calibration, value)
    if not isinstance(value, (int, float)):
        raise ValueError(f"Expected a number of {sweep}. Received: {value}.")
    if sweep == "bandwidth":
        return _vary.with_bandwidth(calibration, value)
    if sweep == "heterogeneity":
        return _vary.with_spread(calibration, value)
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"Expected whole {sweep}. Received: {value}.")
    if sweep == "batch":
        return _vary.with_batch(calibration, int(value))
    return _vary.with_devices(calibration, int(value))


def _row(
    calibration: StarCalibration, value: Value, label: str, quantum: int | None
) -> SimulationRow:
    devices = calibration.devices
    plan = allocate(calibration, quantum)
    prediction = predict(calibration, plan)
    singles = _singles(calibration)
    single = min(singles, key=lambda name: singles[name])
    names = {device.name for device in devices}
    busy = prediction.busy()
    device, device_busy = _most(busy, prediction, lambda w: w in names)
    link, link_busy = _most(busy, prediction, lambda w: w not in names)
    joules = {
        d.name: d.watts * busy.get(d.name, 0.0)
        + d.idle_watts * (prediction.step_s - busy.get(d.name, 0.0))
        for d in devices
        if d.watts is not None
    }
    whole = convolutions_s(calibration, devices[0])
    return SimulationRow(
        value=value if isinstance(value, (int, float)) else label,
        label=label,
        devices=len(devices),
        used=sum(any(n) for n in zip(*plan.values(), strict=True)),
        step_s=prediction.step_s,
        chief_s=_alone(calibration, 0),
        single_s=singles[single],
        single=single,
        equal_s=predict(calibration, equal_shares(calibration)).step_s,
        ideal=amdahl(calibration),
        capacity=sum(whole / convolutions_s(calibration, d) for d in devices),
        sent_bytes=sum(prediction.sent_bytes.values()),
        busiest_device=device,
        device_busy=device_busy,
        busiest_link=link,
        link_busy=link_busy,
        joules=sum(joules.values()) if len(joules) == len(devices) else None,
        joules_by_device=joules,
    )


def _alone(calibration: StarCalibration, device: int) -> float:
    """Seconds of a step with all kernels on one device."""
    shares: Allocation = {
        c.name: tuple(
            c.filters * (d == device) for d in range(len(calibration.devices))
        )
        for c in calibration.network
    }
    return predict(calibration, shares).step_s


def _singles(calibration: StarCalibration) -> dict[str, float]:
    """Seconds of a step with all kernels on one device, by its name.

    These are for the chief, and for each other device that has the memory. Of
    devices that are alike there is the first only.
    """
    found: dict[str, float] = {}
    seen = set()
    for i, device in enumerate(calibration.devices):
        needed = sum(
            memory_bytes(calibration, c, c.filters) for c in calibration.network
        )
        alike = (id(device.times), device.update_s, *_ends(calibration, device))
        fits = device.memory_bytes is None or needed <= device.memory_bytes
        if i == 0 or (fits and alike not in seen):
            found[device.name] = _alone(calibration, i)
            if i:
                seen.add(alike)
    return found


def _ends(
    calibration: StarCalibration, device: StarDevice
) -> tuple[float, ...]:
    """Rates and latencies of a device's links with the chief."""
    chief = calibration.chief
    if device is chief:
        return ()
    links = (
        calibration.link(chief.name, device.name),
        calibration.link(device.name, chief.name),
    )
    return tuple(x for k in links for x in (k.bytes_per_s, k.latency_s))


def _most(
    busy: Mapping[str, float],
    prediction: Prediction,
    among: Callable[[str], bool],
) -> tuple[str, float]:
    """What is busy longest, and for which part of the step."""
    where = max(filter(among, busy), key=lambda w: busy[w], default="")
    if not where:
        return "", 0.0
    return where, min(busy[where] / prediction.step_s, 1.0)


def _about(
    calibration: StarCalibration, sweep: str, values: Sequence[Value]
) -> str:
    """The cluster and the network, in a line."""
    network, facts = calibration.network, calibration.facts
    kernels = ":".join(str(c.filters) for c in network)
    if len(network.convolutions) > 4:
        kernels = f"{len(network.convolutions)} convolutions"
    words = []
    if sweep != "kernels":
        words.append(f"{kernels} kernels")
    if sweep != "batch":
        words.append(f"batch {network.batch}")
    count = len(calibration.devices)
    words.append(facts.get("devices") or f"{count} measured devices")
    if sweep == "devices" and any(
        isinstance(value, (int, float)) and value > count for value in values
    ):
        words[-1] += " and more like the last"
    if sweep != "bandwidth" and "link" in facts:
        words.append(facts["link"])
    alone = convolutions_s(calibration, calibration.chief)
    if alone > 0:
        share = alone / (alone + calibration.rest_s)
        words.append(f"{share:.0%} in convolutions")
    if sweep == "kernels":
        words[-1] += f" at {kernels}"
    return ", ".join(words)
