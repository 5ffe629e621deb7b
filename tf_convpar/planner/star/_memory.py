"""Memory of devices that the layers of an allocation take."""

from __future__ import annotations

from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._cost import Allocation
from tf_convpar.planner.star._network import StarConvolution


def layer_bytes(
    calibration: StarCalibration, convolution: StarConvolution
) -> tuple[int, int]:
    """Bytes that a device with kernels of a layer needs once, and for each.

    The input, and a kernel's feature maps, are kept for the gradients. A
    kernel also takes its parameters, their gradient and slots, and the gradient
    of its feature maps.
    """
    network = calibration.network
    each = convolution.parameters(1) * (2 + network.slots)
    each += 2 * convolution.output_values(network.batch, 1)
    return 4 * convolution.input_values(network.batch), 4 * each


def memory_bytes(
    calibration: StarCalibration, convolution: StarConvolution, filters: int
) -> int:
    """Bytes that a convolution with `filters` kernels takes on a device."""
    fixed, each = layer_bytes(calibration, convolution)
    return fixed + each * filters if filters else 0


def fits(calibration: StarCalibration, counts: Allocation) -> bool:
    """Whether all devices have the memory for an allocation."""
    return not any(excess(calibration, counts))


def excess(calibration: StarCalibration, counts: Allocation) -> list[int]:
    """Bytes by which an allocation exceeds the memory of each device."""
    needed = needed_bytes(calibration, counts)
    return [
        0
        if device.memory_bytes is None
        else max(0, taken - device.memory_bytes)
        for device, taken in zip(calibration.devices, needed, strict=True)
    ]


def needed_bytes(calibration: StarCalibration, counts: Allocation) -> list[int]:
    """Bytes that an allocation takes on each device."""
    return [
        sum(
            memory_bytes(calibration, c, counts[c.name][d])
            for c in calibration.network
        )
        for d in range(len(calibration.devices))
    ]


def highest(
    calibration: StarCalibration, convolution: StarConvolution
) -> list[int]:
    """The most kernels that each device can hold of a layer alone."""
    limits = []
    fixed, each = layer_bytes(calibration, convolution)
    for device in calibration.devices:
        most = convolution.filters
        if device.memory_bytes is not None:
            room = (device.memory_bytes - fixed) // each
            most = max(0, min(most, room))
        limits.append(most)
    return limits


def message(calibration: StarCalibration, quantum: int) -> str:
    """Says that nothing fits: what is needed, and what each device has."""
    least = sum(
        memory_bytes(calibration, c, c.filters) for c in calibration.network
    )
    has = ", ".join(
        f"{device.name} has "
        + (
            "no limit"
            if device.memory_bytes is None
            else f"{device.memory_bytes} bytes"
        )
        for device in calibration.devices
    )
    return (
        "Expected devices that hold the kernels and feature maps of all "
        f"layers, in units of {quantum} kernels: {least} bytes at least, and "
        "a layer's input once more for each further device that shares it. "
        f"Received: {has}. A smaller batch needs less."
    )
