"""One simulated cluster of a sweep."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """One simulated cluster, with the plan that is best for it.

    Attributes:
        value: Of what was swept: devices, bytes per second, images, kernels
            as `"500:1500"`, or the ratio of the fastest speed to the
            slowest.
        label: The same for readers.
        devices: How many there are.
        used: How many of them have kernels.
        step_s: Seconds of a step.
        chief_s: On the chief alone.
        single_s: With all kernels on the one device that is best for that,
            the rest of the network on the chief.
        single: That device.
        equal_s: With equal numbers of kernels on all devices.
        ideal: The speedup, over the chief alone, of devices that split every
            pass in proportion to their speeds, and of links that take no
            time: Amdahl's law.
        capacity: What all devices do of the convolutions in a second,
            relative to the chief.
        sent_bytes: Over all links.
        busiest_device: The one with the most to do.
        device_busy: The part of the step in which it has.
        busiest_link: Likewise; empty if nothing is sent.
        link_busy: Likewise.
        joules: Of a step, all devices; None if any's power is not known.
        joules_by_device: Of those whose power is known.
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
        """Over the chief alone."""
        return self.chief_s / self.step_s

    @property
    def speedup_of_best(self) -> float:
        """Over the best single device."""
        return self.single_s / self.step_s

    @property
    def efficiency(self) -> float:
        """Speedup by capacity; with equal devices, by their number."""
        return self.speedup / self.capacity

    @property
    def gain(self) -> float:
        """How many times as long the step of an equal split takes."""
        return self.equal_s / self.step_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without infinities, which JSON has no word for."""
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
