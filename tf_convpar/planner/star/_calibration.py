"""What devices and links were measured to do.

All times are seconds, all sizes bytes. The numbers come from
`tf_convpar.planner.calibrate`, from a file, or from a description of devices
that nobody has (`simulate`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from tf_convpar.planner._link import Link
from tf_convpar.planner.star._network import Convolution
from tf_convpar.planner.star._network import Network


@dataclasses.dataclass(frozen=True)
class Times:
    """Of one convolution on one device, at some numbers of kernels.

    Attributes:
        filters: Kernels that were measured, ascending, none 0.
        forward: Seconds of the forward pass for each of them.
        input_gradient: Likewise; zeros where training needs none.
        kernel_gradient: Likewise.
    """

    filters: tuple[int, ...]
    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    kernel_gradient: tuple[float, ...]

    def at(self, which: str, filters: float) -> float:
        """Seconds of a pass with that many kernels; 0 for none.

        Linear between measured points. Below the first, the line through the
        first two goes on (what it leaves at 0 is what a convolution costs
        before its first kernel), but never below the proportional share, to
        which it is held where there is one point only; above the last,
        proportional to it.
        """
        if filters <= 0:
            return 0.0
        widths, seconds = self.filters, getattr(self, which)
        if filters >= widths[-1]:
            return float(seconds[-1] * filters / widths[-1])
        if filters >= widths[0]:
            return float(np.interp(filters, widths, seconds))
        share = seconds[0] * filters / widths[0]
        if len(widths) == 1:
            return float(share)
        slope = (seconds[1] - seconds[0]) / (widths[1] - widths[0])
        line = seconds[0] - slope * (widths[0] - filters)
        return float(min(max(share, line), seconds[0]))


def proportional(convolution: Convolution, batch: int, flops: float) -> Times:
    """Of a device that makes so many operations a second, whatever it does."""
    widths = sorted({1, convolution.filters})
    seconds = tuple(
        2 * convolution.multiplications(batch, n) / flops for n in widths
    )
    nothing = (0.0,) * len(widths)
    return Times(
        tuple(widths),
        forward=seconds,
        input_gradient=seconds if convolution.input_gradient else nothing,
        kernel_gradient=seconds,
    )


@dataclasses.dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: TensorFlow's: `"/job:worker/replica:0/task:0/device:CPU:0"`.
        times: Of each convolution, by its layer's name.
        update_s: Of the optimizer, for one parameter.
        memory_bytes: What it can give to kernels and feature maps of
            convolutions; None if that is no limit.
        watts: While it computes; None if unknown.
        idle_watts: While it waits.
    """

    name: str
    times: Mapping[str, Times]
    update_s: float = 0.0
    memory_bytes: int | None = None
    watts: float | None = None
    idle_watts: float = 0.0


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Everything that `plan` goes by.

    Attributes:
        network: What was measured.
        devices: The first is the chief's, on which the rest of the network
            runs and every feature map is joined.
        links: At least both directions between the chief and each other
            device.
        rest_s: Of a step, all that is no convolution: other layers, loss,
            their gradients and updates.
        join_s: Of the chief, for one byte that it joins, cuts or adds where a
            convolution is spread.
        transfer_s: Of the chief's processor, for one byte that it sends or
            receives while it computes.
        quantum: Kernels that are computed in the time of one: plans give
            devices multiples of it. 1 where time has no such steps.
        facts: Of the environment in which it was measured, for readers and
            for checks: versions, date, spread.
    """

    network: Network
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    rest_s: float
    join_s: float = 0.0
    transfer_s: float = 0.0
    quantum: int = 1
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def chief(self) -> Device:
        """The device that joins feature maps."""
        return self.devices[0]

    def link(self, source: str, target: str) -> Link:
        """From one device to another.

        Raises:
            ValueError: It was not measured.
        """
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise ValueError(
            f"Expected a link from {source} to {target} in the calibration. "
            f"Received {len(self.links)} links: "
            f"{[(link.source, link.target) for link in self.links]}."
        )
