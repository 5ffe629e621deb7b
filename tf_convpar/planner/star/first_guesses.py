"""Allocations that need no solver.

The best of them tells the solver how long a layer takes at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence

from tf_convpar.planner.star import _cost
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._network import StarConvolution

Counts = tuple[int, ...]


def singles(calibration: StarCalibration) -> Iterator[dict[str, Counts]]:
    """The allocations of all kernels to one device, for each device."""
    count = len(calibration.devices)
    for chosen in range(count):
        yield {
            convolution.name: tuple(
                convolution.filters if d == chosen else 0 for d in range(count)
            )
            for convolution in calibration.network
        }


def equal(calibration: StarCalibration) -> dict[str, Counts]:
    """The allocation of equal numbers of kernels, but for remainders."""
    count = len(calibration.devices)
    return {
        c.name: tuple(
            c.filters // count + (d < c.filters % count) for d in range(count)
        )
        for c in calibration.network
    }


def guesses(
    calibration: StarCalibration,
    convolution: StarConvolution,
    quantum: int,
    highest: Sequence[int],
    least_devices: int,
) -> list[Counts]:
    """Allocations of a layer to one device, to the two fastest, and so on.

    Shares are proportional to a device's speed alone, transfers included.

    Args:
        calibration: Measurements of the devices, with this layer only.
        convolution: The layer.
        quantum: Number of kernels in a unit.
        highest: The most kernels that each device may have.
        least_devices: Least number of devices that must have kernels.

    Returns:
        Allocations that keep to `highest`, those to one device first.
    """
    alone = list(singles(calibration))
    name, filters = convolution.name, convolution.filters
    allocations = [counts[name] for counts in alone]
    seconds = [_cost.predict(calibration, counts).step_s for counts in alone]
    if min(seconds) > 0:
        order = sorted(range(len(seconds)), key=seconds.__getitem__)
        for count in range(2, len(order) + 1):
            speeds = [0.0] * len(seconds)
            for d in order[:count]:
                speeds[d] = 1 / seconds[d]
            allocations.append(_proportional(speeds, filters, quantum))
        # The best split where one device is far faster than all others.
        allocations.append(_all_but_one(order, filters, quantum))
    return [
        counts
        for counts in allocations
        if sum(n > 0 for n in counts) >= least_devices
        and all(n <= most for n, most in zip(counts, highest, strict=True))
    ]


def _proportional(
    speeds: Sequence[float], filters: int, quantum: int
) -> Counts:
    """Gives out units by largest remainder, the short one to the fastest."""
    units = -(-filters // quantum)
    exact = [units * speed / sum(speeds) for speed in speeds]
    unit_counts = [int(share) for share in exact]
    by_remainder = sorted(
        range(len(speeds)), key=lambda d: unit_counts[d] - exact[d]
    )
    for d in by_remainder[: units - sum(unit_counts)]:
        unit_counts[d] += 1
    fastest = max(range(len(speeds)), key=lambda d: (unit_counts[d], speeds[d]))
    counts = [quantum * n for n in unit_counts]
    counts[fastest] -= sum(counts) - filters
    return tuple(counts)


def _all_but_one(order: Sequence[int], filters: int, quantum: int) -> Counts:
    """Gives all to the fastest device, but a unit to the next if it can."""
    counts = [0] * len(order)
    if len(order) > 1 and filters > quantum:
        counts[order[1]] = quantum
    counts[order[0]] = filters - sum(counts)
    return tuple(counts)
