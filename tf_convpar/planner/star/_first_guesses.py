"""Allocations that need no solver.

The best of them tells the solver how long a layer takes at most.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from collections.abc import Sequence

from tf_convpar.planner._balancing import balanced
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
    """Allocations of a layer to one device, and to all of them.

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
    seconds = [_cost.predict(calibration, counts).step_s for counts in alone]
    shared = balanced(
        convolution.filters,
        [functools.partial(operator.mul, s) for s in seconds],
        quantum,
    )
    return [
        counts
        for counts in (*(one[convolution.name] for one in alone), shared)
        if sum(n > 0 for n in counts) >= least_devices
        and all(n <= most for n, most in zip(counts, highest, strict=True))
    ]
