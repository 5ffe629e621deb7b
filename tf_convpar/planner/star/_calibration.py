"""What devices and links were measured to do.

All times are seconds, all sizes bytes. The numbers come from
`tf_convpar.planner.star.calibrate`, from a file, or from a description of
devices that nobody has (`simulation.describe`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from tf_convpar.files import Checked
from tf_convpar.files import Count
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Quantity
from tf_convpar.files import Some
from tf_convpar.files import Unexpected
from tf_convpar.files import check_distinct
from tf_convpar.planner._calibration import check_points
from tf_convpar.planner._link import Link
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution


@dataclasses.dataclass(frozen=True)
class Times(Checked):
    """The times of one convolution on one device, for its whole batch.

    Attributes:
        filters: Numbers of kernels that were measured, ascending, none 0.
        forward: Seconds of the forward pass, one for each of `filters`.
        input_gradient: Seconds of the input's gradient, one for each of
            `filters`; zeros where training needs no such gradient.
        kernel_gradient: Seconds of the kernel's gradient, one for each of
            `filters`.
    """

    filters: tuple[Count, ...]
    forward: tuple[Quantity, ...]
    input_gradient: tuple[Quantity, ...]
    kernel_gradient: tuple[Quantity, ...]

    def check(self) -> None:
        """Numbers of kernels ascend, and each has its times."""
        check_points(
            self, "filters", "forward", "input_gradient", "kernel_gradient"
        )

    def at(self, which: str, filters: float) -> float:
        """Seconds of a pass with `filters` kernels; 0 for none.

        Time is linear between measured points. Above the last point it is
        proportional to that point. Below the first point the line through the
        first two goes on: its value at 0 is what a convolution costs before
        its first kernel. There time is at least proportional to the first
        point, and at most that point's. With one point only, it is always
        proportional.
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


def proportional(
    convolution: StarConvolution, batch: int, flops: float
) -> Times:
    """The times of a device that makes `flops` operations in every second."""
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
class StarDevice(Checked):
    """One device.

    Attributes:
        name: TensorFlow's name of it, such as
            `"/job:worker/replica:0/task:0/device:CPU:0"`.
        times: Times of each convolution, by its layer's name.
        update_s: Seconds of the optimizer's update of one parameter.
        memory_bytes: Memory that it can give to kernels and feature maps of
            convolutions; None for no limit.
        watts: Power in watts while it computes; None if unknown.
        idle_watts: Power in watts while it waits.
    """

    name: Name
    times: Mapping[str, Times]
    update_s: Quantity = 0.0
    memory_bytes: Natural | None = None
    watts: Quantity | None = None
    idle_watts: Quantity = 0.0


@dataclasses.dataclass(frozen=True)
class StarCalibration(Checked):
    """The measurements from which `plan` makes a plan.

    Attributes:
        network: Network that was measured.
        devices: All devices. The first is the chief's: the rest of the network
            runs there, and every feature map is joined there.
        links: Links in both directions between the chief and each other
            device, and possibly more.
        rest_s: Seconds of a step for all that is no convolution: other layers,
            loss, their gradients and updates.
        join_s: Seconds that the chief takes for one byte that it joins, cuts
            or adds where a convolution is spread.
        transfer_s: Seconds that the chief's processor takes for one byte that
            it sends or receives while it computes.
        quantum: Number of kernels that are computed in the time of one. Plans
            give devices multiples of it. 1 where time has no such steps.
        facts: Facts about the environment of the measurement, for readers and
            for checks: versions, date, spread.
    """

    network: Network
    devices: Some[StarDevice]
    links: tuple[Link, ...]
    rest_s: Quantity
    join_s: Quantity = 0.0
    transfer_s: Quantity = 0.0
    quantum: Count = 1
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Devices have times of all layers, and links to and from the chief."""
        check_distinct([d.name for d in self.devices], "devices", "devices")
        layers = [convolution.name for convolution in self.network]
        for i, device in enumerate(self.devices):
            wrong = [f"no {n!r}" for n in layers if n not in device.times]
            wrong += [
                f"an unknown {n!r}" for n in device.times if n not in layers
            ]
            if wrong:
                raise Unexpected(
                    f"the layers {', '.join(layers)}",
                    *("devices", i, "times"),
                    received=", ".join(wrong),
                )
        self._check_links()

    @property
    def chief(self) -> StarDevice:
        """The device that joins feature maps."""
        return self.devices[0]

    def link(self, source: str, target: str) -> Link:
        """Returns the link from one device to another.

        Raises:
            ValueError: The calibration has no such link.
        """
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise ValueError(
            f"Expected a link from {source} to {target} in the calibration. "
            f"Received {len(self.links)} links: "
            f"{[(link.source, link.target) for link in self.links]}."
        )

    def _check_links(self) -> None:
        names = [device.name for device in self.devices]
        seen = set()
        for i, link in enumerate(self.links):
            for end in ("source", "target"):
                if getattr(link, end) not in names:
                    what = f"one of the devices, {', '.join(names)},"
                    raise Unexpected(what, "links", i, end)
            if link.source == link.target:
                what = "another device than the link's source"
                raise Unexpected(what, "links", i, "target")
            ends = link.source, link.target
            if ends in seen:
                twice = f"{' -> '.join(ends)} a second time"
                raise Unexpected("each link once", "links", i, received=twice)
            seen.add(ends)
        for a, b in itertools.permutations(names, 2):
            if names[0] in (a, b) and (a, b) not in seen:
                raise Unexpected(
                    f"a link {a} -> {b}, both directions between the first "
                    "device and each other,",
                    "links",
                    received=f"{len(seen)} links without it",
                )
