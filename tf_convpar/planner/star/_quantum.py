"""Measures in which steps time grows with the number of kernels."""

from __future__ import annotations

import dataclasses

from tf_convpar import algorithms
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import Geometry
from tf_convpar.planner.measure import Clock

# Seconds of a run, and multiplications a second until one has been timed.
_RUN_S = 0.05
_FIRST_GUESS = 2e10


def quantum_of(
    geometry: Geometry, algorithm: str | None, device: str, clock: Clock
) -> int:
    """Kernels that are computed in the time of one: 16, 8 or 1.

    Direct convolutions fill vectors of kernels. 16, 8 and 4 kernels fewer are
    timed. Where 8 fewer save less than a quarter of what 16 save, time has
    steps of 16; where 4 fewer save less than an eighth, steps of 8; else none.
    Few images are measured: the difference is small, and of short runs the
    median of several is taken.

    Args:
        geometry: Geometry of the largest convolution, with a known batch.
        algorithm: Algorithm of its layer; None for direct.
        device: Name of the device.
        clock: Clock that takes the times.
    """
    top = min(geometry.filters, 256) // 16 * 16
    if top < 32:
        return 1
    each = dataclasses.replace(geometry, batch=1, filters=top).multiplications
    fit = int(_RUN_S * _FIRST_GUESS / max(each, 1))
    images = max(1, min(fit, geometry.batch or 1))

    def seconds(kernels: int) -> float:
        some = dataclasses.replace(geometry, batch=images, filters=kernels)
        choice = algorithms.by_name("direct", some)
        if algorithm == "auto":
            choice = algorithms.by_measurement(some, device)
        elif algorithm is not None:
            choice = algorithms.by_name(algorithm, some)
        (run,) = algorithms.runners([choice.forward], some, FORWARD, device)
        return clock.time(run, f"{device}: {kernels} kernels")

    all_, lowest = seconds(top), seconds(top - 16)
    if all_ <= lowest:
        return 16
    if (all_ - seconds(top - 8)) / (all_ - lowest) < 0.25:
        return 16
    if (all_ - seconds(top - 4)) / (all_ - lowest) < 0.125:
        return 8
    return 1
