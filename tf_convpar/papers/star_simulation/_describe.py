"""Makes a calibration from a description of a cluster."""

from __future__ import annotations

import dataclasses
import math

from tf_convpar.planner import Link
from tf_convpar.planner import descriptions
from tf_convpar.planner.descriptions import DESCRIPTION
from tf_convpar.planner.descriptions import EXAMPLE
from tf_convpar.planner.descriptions import LATENCY
from tf_convpar.planner.descriptions import LINK
from tf_convpar.planner.descriptions import SOURCE
from tf_convpar.planner.star import PHASES
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import compute_s
from tf_convpar.planner.star import proportional

# Part of a step on the chief that convolutions take. Paper 1 says 60 to 90 %,
# and more for larger networks.
CONV_SHARE = 0.9


def describe(
    network: Network,
    devices: str = EXAMPLE,
    link: str = LINK,
    latency: str = LATENCY,
    *,
    rest: float | None = None,
    conv_share: float | None = None,
    idle: float = 0.0,
) -> StarCalibration:
    """The calibration of described devices, which nobody needs to have.

    ```python
    describe(network((500, 1500)), "1xi7-6700k,2xgpu:5TFLOPS@180W", "10Gbit")
    ```

    A device's time is proportional to the multiplications of its kernels:
    starting an operation costs nothing. The three passes of a convolution cost
    the same. Joining feature maps and serving transfers cost the chief's
    processor nothing. All links are alike.

    Args:
        network: Network of convolutions.
        devices: Devices `[N x]NAME[:RATE][@WATTS]`, separated by commas, the
            chief first; see `descriptions.devices`.
        link: Rate of each direction between the chief and another device:
            `"100Mbit"`, `"1.2GB"` (a second), `"inf"`.
        latency: Time of a small message, such as `"0.1ms"`.
        rest: Seconds that the chief spends in a step on all but convolutions.
        conv_share: Part of a step on the chief alone that convolutions take,
            in place of `rest`; 0.9 if neither is given.
        idle: Part of its power that a device draws while it waits.

    Returns:
        The calibration. Its `facts` say that it was described.

    Raises:
        ValueError: A description cannot be read, or a number is not possible.
    """
    described = descriptions.devices(devices)
    rate, delay = descriptions.link(link, latency)
    if not 0 <= idle <= 1:
        raise ValueError(
            "Expected idle to be a part of the power, from 0 to 1. Received: "
            f"{idle}."
        )
    star_devices = [
        StarDevice(
            device.name,
            {
                c.name: proportional(c, network.batch, device.flops)
                for c in network
            },
            watts=device.watts,
            idle_watts=idle * (device.watts or 0.0),
        )
        for device in described
    ]
    chief = star_devices[0].name
    links = [
        Link(*ends, bytes_per_s=rate, latency_s=delay)
        for other in star_devices[1:]
        for ends in ((chief, other.name), (other.name, chief))
    ]
    bare = StarCalibration(
        network, tuple(star_devices), tuple(links), rest_s=0.0
    )
    rest_s = _rest_s(bare, rest, conv_share)
    facts = {
        SOURCE: DESCRIPTION,
        "devices": devices,
        "link": link,
        "latency": latency,
        "rest_s": repr(rest_s),
    }
    return dataclasses.replace(bare, rest_s=rest_s, facts=facts)


def convolutions_s(calibration: StarCalibration, device: StarDevice) -> float:
    """Seconds of all convolutions of a step on one device."""
    return sum(
        compute_s(calibration, device, c, phase, c.filters)
        for c in calibration.network
        for phase in PHASES
    )


def _rest_s(
    calibration: StarCalibration, rest: float | None, conv_share: float | None
) -> float:
    if rest is not None:
        if conv_share is not None:
            raise ValueError(
                "Expected rest or conv_share. Received both: "
                f"rest={rest}, conv_share={conv_share}."
            )
        if not 0 <= rest < math.inf:
            raise ValueError(
                f"Expected rest in seconds, at least 0. Received: {rest}."
            )
        return rest
    share = CONV_SHARE if conv_share is None else conv_share
    if not 0 < share <= 1:
        raise ValueError(
            "Expected conv_share, the part of a step that convolutions take, "
            f"above 0 and at most 1. Received: {share}."
        )
    seconds = convolutions_s(calibration, calibration.chief)
    return seconds * (1 - share) / share
