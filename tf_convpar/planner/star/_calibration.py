"""Calibrations for the star: times of devices, rates of links, and their files.

All times are seconds, all sizes bytes. The numbers come from
`tf_convpar.planner.star.calibrate`, from a file, or from a description of
devices that nobody has (`describe`). `docs/planning-the-star.md` has the
schema of files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from tf_convpar.files import Checked
from tf_convpar.files import Count
from tf_convpar.files import Form
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Quantity
from tf_convpar.files import Some
from tf_convpar.files import Unexpected
from tf_convpar.files import check_distinct
from tf_convpar.planner._calibration import check_points
from tf_convpar.planner._calibration import on_line
from tf_convpar.planner._link import Link
from tf_convpar.planner._link import check_links
from tf_convpar.planner._link import link_of
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution

PASSES = ("forward", "input_gradient", "kernel_gradient")


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
        check_points(self, "filters", *PASSES)

    def at(self, which: str, filters: float) -> float:
        """Seconds of a pass with `filters` kernels; 0 for none.

        `on_line` says what is beside measured points. Above the last one time
        is proportional to it: more kernels than a layer has are those of whole
        quanta, and take no longer each.
        """
        if filters <= 0:
            return 0.0
        widths, seconds = self.filters, getattr(self, which)
        if filters >= widths[-1]:
            return float(seconds[-1] * filters / widths[-1])
        return float(on_line(widths, seconds, filters))

    def scaled(self, factor: float) -> Times:
        """Times that are `factor` times as long."""
        return Times(
            self.filters,
            *(
                tuple(s * factor for s in getattr(self, which))
                for which in PASSES
            ),
        )


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
    """A device, with measured times.

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
            for checks: versions, processors, date.
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
        chief, *others = (device.name for device in self.devices)
        pairs = [ends for d in others for ends in ((chief, d), (d, chief))]
        check_links(self.links, [chief, *others], pairs)

    @property
    def chief(self) -> StarDevice:
        """The device that joins feature maps."""
        return self.devices[0]

    def link(self, source: str, target: str) -> Link:
        """Returns the link from one device to another; see `link_of`."""
        return link_of(self.links, source, target)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file, whole or not at all.

        Raises:
            OSError: The file cannot be written.
        """
        _FORM.save(self, path)


KIND = "star calibration"
_FORM = Form(StarCalibration, KIND, 1, "Calibrate again")

load = _FORM.load
to_json = _FORM.to_json
from_json = _FORM.from_json
