"""Sweeps of the star alone; see `planner.vary`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar.papers.star_simulation._describe import convolutions_s
from tf_convpar.planner.descriptions import DESCRIPTION
from tf_convpar.planner.descriptions import SOURCE
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarConvolution
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import Times
from tf_convpar.planner.star import proportional
from tf_convpar.planner.vary import Value
from tf_convpar.planner.vary import whole_number


def with_batch(calibration: StarCalibration, value: float) -> StarCalibration:
    """The calibration with another batch.

    The times of convolutions and of the rest of the network are taken to be
    proportional to the number of images. The optimizer's update, which does not
    depend on it, and the latency of links stay.

    Raises:
        ValueError: It is no number of images.
    """
    batch = whole_number("batch", value, "image")
    network = dataclasses.replace(calibration.network, batch=batch)
    factor = batch / calibration.network.batch
    return dataclasses.replace(
        calibration,
        network=network,
        devices=tuple(
            dataclasses.replace(device, times=_scaled(device.times, factor))
            for device in calibration.devices
        ),
        rest_s=calibration.rest_s * factor,
    )


def with_kernels(
    calibration: StarCalibration, kernels: Value
) -> StarCalibration:
    """The calibration with other numbers of kernels, for described devices.

    A pass takes a time proportional to its multiplications. The rest of the
    network works on feature maps, and takes a time proportional to their size.
    This is why larger networks gain more from more devices.

    Args:
        calibration: A calibration that `describe` made.
        kernels: Number of kernels of each convolution.

    Raises:
        ValueError: The devices were measured, which says nothing about
            other networks; or the numbers do not fit the network.
    """
    network = calibration.network
    if calibration.facts.get(SOURCE) != DESCRIPTION:
        raise ValueError(
            "Expected described devices to simulate other numbers of kernels. "
            "Received: measured ones, which say nothing about other networks. "
            "Calibrate a network of each size."
        )
    if isinstance(kernels, (int, float)):
        kernels = (int(kernels),)
    changed = _with_kernels(network, kernels)
    pairs = list(zip(network, changed, strict=True))
    values = sum(c.output_values(1) for c in network)
    return dataclasses.replace(
        calibration,
        network=changed,
        devices=tuple(
            dataclasses.replace(
                device,
                times={
                    new.name: proportional(
                        new, network.batch, _flops(old, device, network.batch)
                    )
                    for old, new in pairs
                },
            )
            for device in calibration.devices
        ),
        rest_s=calibration.rest_s
        * sum(c.output_values(1) for c in changed)
        / values,
    )


def with_spread(calibration: StarCalibration, ratio: float) -> StarCalibration:
    """The calibration with as many devices, as fast together, but unequal.

    Their speeds fall geometrically from the chief to the last device, and have
    the same sum as before. The chief is `ratio` times as fast as the last one.
    Each device takes the time of the chief's passes, made longer or shorter.
    Power, where all is known, is shared in proportion to speed. The rest of the
    network takes as long as before, so that steps can be compared.

    Raises:
        ValueError: The ratio is below 1, or there is only one device.
    """
    devices = calibration.devices
    if not 1 <= ratio < math.inf or len(devices) < 2:
        raise ValueError(
            "Expected a ratio of speeds of at least 1, of two or more "
            f"devices. Received: {ratio}, of {len(devices)}."
        )
    chief_s = convolutions_s(calibration, calibration.chief)
    speeds = [chief_s / convolutions_s(calibration, d) for d in devices]
    shape = [ratio ** (-i / (len(devices) - 1)) for i in range(len(devices))]
    shares = [s / sum(shape) for s in shape]
    return dataclasses.replace(
        calibration,
        devices=tuple(
            dataclasses.replace(
                device,
                times=_scaled(
                    calibration.chief.times, 1 / (share * sum(speeds))
                ),
                watts=_share(share, [d.watts for d in devices]),
                idle_watts=share * sum(d.idle_watts for d in devices),
            )
            for device, share in zip(devices, shares, strict=True)
        ),
    )


def with_watts(device: StarDevice, watts: float) -> StarDevice:
    """The device with another power; when idle, it draws the same part."""
    part = device.idle_watts / device.watts if device.watts else 0.0
    return dataclasses.replace(device, watts=watts, idle_watts=part * watts)


def _flops(one: StarConvolution, device: StarDevice, batch: int) -> float:
    """Operations of a convolution per second, of a described device."""
    seconds = device.times[one.name].at("forward", one.filters)
    return 2 * one.multiplications(batch) / seconds


def _share(share: float, watts: Sequence[float | None]) -> float | None:
    known = [w for w in watts if w is not None]
    return share * sum(known) if len(known) == len(watts) else None


def _scaled(times: Mapping[str, Times], factor: float) -> dict[str, Times]:
    return {name: layer.scaled(factor) for name, layer in times.items()}


def _with_kernels(network: Network, kernels: Sequence[int]) -> Network:
    old = network.convolutions
    chain = all(
        b.channels == a.filters for a, b in zip(old, old[1:], strict=False)
    )
    if len(kernels) != len(old) or min(kernels, default=0) < 1 or not chain:
        raise ValueError(
            "Expected a number of kernels for each of the "
            f"{len(old)} convolutions, which follow one another, at least 1. "
            f"Received: {tuple(kernels)}."
        )
    channels = (old[0].channels, *kernels)
    return dataclasses.replace(
        network,
        convolutions=tuple(
            dataclasses.replace(c, channels=channels[i], filters=kernels[i])
            for i, c in enumerate(old)
        ),
    )
