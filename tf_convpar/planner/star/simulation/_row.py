"""One simulated cluster of a sweep."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class SimulationRow:
    """One simulated cluster, with the plan that is best for it.

    Attributes:
        value: Value of the setting that varies: a number of devices, bytes per
            second, images, kernels such as `"500:1500"`, or the ratio of the
            fastest speed to the slowest.
        label: The value as text for readers.
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

    value: float | str
    label: str
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
        """Plain data; an infinite value is its label, since JSON has none."""
        value = dataclasses.asdict(self)
        value.update(
            speedup=self.speedup,
            speedup_of_best=self.speedup_of_best,
            efficiency=self.efficiency,
            gain=self.gain,
        )
        if isinstance(self.value, float) and math.isinf(self.value):
            value["value"] = self.label
        return value
