"""A device's compute time over its number of kernels, in convex pieces."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from tf_convpar.planner.star import _cost
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._calibration import StarDevice
from tf_convpar.planner.star._network import StarConvolution

# Rounding errors of a slope, relative to the curve.
_SAME_SLOPE = 1e-14


@dataclasses.dataclass(frozen=True)
class Curve:
    """Compute time without updates over kernels, linear between its points.

    Attributes:
        kernels: Numbers of kernels: ascending multiples of the calibration's
            quantum. Compute time at a multiple is that of all numbers of
            kernels down to the next multiple.
        seconds: For each phase, the seconds at each of `kernels`.
    """

    kernels: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def at(self, kernels: Iterable[int]) -> np.ndarray:
        """Seconds for each phase, at each of `kernels` in the curve's range."""
        wanted = list(kernels)
        return np.array(
            [np.interp(wanted, self.kernels, row) for row in self.seconds]
        )

    def rises(self) -> bool:
        """Whether more kernels never take less time."""
        return bool((np.diff(self.seconds, axis=1) >= 0).all())

    def below(self, other: Curve) -> bool:
        """Whether it never takes more time than another, where both exist."""
        last = min(self.kernels[-1], other.kernels[-1])
        places = [n for n in self.kernels + other.kernels if n <= last]
        return bool((self.at(places) <= other.at(places)).all())

    def pieces(self) -> list[Curve]:
        """Cuts it into as few pieces as are convex in both phases.

        Neighbouring pieces share an end.
        """
        slopes = self._slopes()
        size = np.max(self.seconds, axis=1, initial=0.0)
        pieces = []
        first = 0
        for i in range(1, len(self.kernels)):
            last = i == len(self.kernels) - 1
            if (
                last
                or (slopes[:, i] < slopes[:, i - 1] - _SAME_SLOPE * size).any()
            ):
                pieces.append(self._part(first, i))
                first = i
        return pieces or [self]

    def lines(self, phase: int) -> list[tuple[float, float]]:
        """The lines of which a convex curve is the highest, in a phase.

        Each is its slope and its value at 0.
        """
        x, y = self.kernels, self.seconds[phase]
        if len(x) == 1:
            return [(0.0, y[0])]
        lines: list[tuple[float, float]] = []
        for slope, at, where in zip(self._slopes()[phase], y, x, strict=False):
            if not lines or slope > lines[-1][0] + _SAME_SLOPE * max(y):
                lines.append((slope, at - slope * where))
        return lines

    def _slopes(self) -> np.ndarray:
        return np.diff(self.seconds, axis=1) / np.diff(self.kernels)

    def _part(self, first: int, last: int) -> Curve:
        return Curve(
            self.kernels[first : last + 1],
            tuple(row[first : last + 1] for row in self.seconds),
        )


def curve(
    calibration: StarCalibration,
    device: StarDevice,
    convolution: StarConvolution,
    lowest: int,
    highest: int,
) -> Curve:
    """The curve of a device from `lowest` to `highest` kernels.

    `Times.at` bends at measured widths and nowhere else. It is asked at
    multiples of the calibration's quantum only, so a bend between two of them
    becomes one at each.
    """
    quantum = calibration.quantum
    first, last = (-(-n // quantum) for n in (lowest, highest))
    bends = {first, last}
    for width in device.times[convolution.name].filters:
        bends |= {width // quantum, -(-width // quantum)}
    kernels = [n * quantum for n in sorted(bends) if first <= n <= last]
    bare = dataclasses.replace(device, update_s=0.0)
    return Curve(
        tuple(kernels),
        tuple(
            tuple(
                _cost.compute_s(calibration, bare, convolution, phase, n)
                for n in kernels
            )
            for phase in _cost.PHASES
        ),
    )


def reach(curve: Curve, chain: np.ndarray, limit: float) -> int | None:
    """The most kernels for which a time is within a limit; None if none are.

    Args:
        curve: Curve whose points have that time.
        chain: Time at each of the curve's points, linear between them.
        limit: Longest time that is allowed.
    """
    if chain[-1] <= limit:
        return curve.kernels[-1]
    pairs = list(itertools.pairwise(zip(curve.kernels, chain, strict=True)))
    for (x0, y0), (x1, y1) in reversed(pairs):
        if y0 <= limit:  # And y1 is above it.
            return int(x0 + (x1 - x0) * (limit - y0) / (y1 - y0))
    return None
