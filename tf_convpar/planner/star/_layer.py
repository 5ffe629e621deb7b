"""The part of the allocation's program that describes one layer.

The docstring of `_optimum` derives it, and explains its names.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from tf_convpar.planner._linear_program import Linear
from tf_convpar.planner._linear_program import LinearProgram
from tf_convpar.planner._linear_program import NoSolution
from tf_convpar.planner._linear_program import total
from tf_convpar.planner._link import Link
from tf_convpar.planner.star import _cost
from tf_convpar.planner.star import _curves
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._curves import Curve
from tf_convpar.planner.star._network import StarConvolution

_MARGIN = 1 + 1e-9


@dataclasses.dataclass(frozen=True)
class Shares:
    """A layer in a program.

    Attributes:
        kernels: Kernels of each device, the n_d; 0 if it can have none.
        used: Whether each device has any kernels, the u_d.
        seconds: Time of both phases and of joins, in the program's unit.
    """

    kernels: tuple[Linear, ...]
    used: tuple[Linear, ...]
    seconds: Linear

    def counts(self, values: np.ndarray) -> tuple[int, ...]:
        """Kernels of each device in a solution."""
        # The m_d and w_d are whole numbers, within HiGHS' tolerances.
        whole = np.round(values)
        return tuple(round(kernels.of(whole)) for kernels in self.kernels)


@dataclasses.dataclass(frozen=True)
class _Chains:
    """Times of a device's transfers and updates, in the program's unit.

    Attributes:
        latency: Latency of both transfers, for each phase.
        fixed: Time of a whole input to or from the device, for each phase.
        each: Time of one kernel's feature maps, for each phase.
        update: Time of one kernel's update, in the backward phase.
    """

    latency: tuple[float, float]
    fixed: tuple[float, float]
    each: tuple[float, float]
    update: float


def add(
    program: LinearProgram,
    calibration: StarCalibration,
    convolution: StarConvolution,
    quantum: int,
    highest: Sequence[int],
    *,
    unit: float,
    limit: float,
    least_devices: int = 1,
    ordered: bool = True,
) -> Shares:
    """Adds a layer to a program.

    Args:
        program: The program.
        calibration: Measurements of the devices.
        convolution: The layer.
        quantum: Kernels in a unit of the allocation, q.
        highest: The most kernels that each device may have.
        unit: Seconds in the program's unit of time.
        limit: Time that the layer surely does not exceed, in that unit.
        least_devices: Least number of devices that must have kernels.
        ordered: Whether to order devices of which one is never slower.

    Raises:
        NoSolution: No device can have kernels.
    """
    layer = _Layer(program, calibration, convolution, quantum, unit)
    for d, most in enumerate(highest):
        layer.device(d, most, limit)
    layer.whole(least_devices)
    if ordered:
        layer.order()
    return Shares(tuple(layer.kernels), tuple(layer.used), layer.seconds())


class _Layer:
    """Adds the devices one by one, and then what ties them together."""

    def __init__(
        self,
        program: LinearProgram,
        calibration: StarCalibration,
        convolution: StarConvolution,
        quantum: int,
        unit: float,
    ) -> None:
        self.program = program
        self.calibration = calibration
        self.convolution = convolution
        self.quantum = quantum
        self.unit = unit
        self.units = -(-convolution.filters // quantum)
        self.short = self.units * quantum - convolution.filters
        network = calibration.network
        # Bytes of the input and of one kernel's feature maps.
        wire = network.wire_bytes
        self.input = wire * convolution.input_values(network.batch)
        self.map = wire * convolution.output_values(network.batch, 1)
        # Bytes that a device returns in the backward phase.
        self.gradient = self.input if convolution.input_gradient else 0
        self.rates = _cost.chief_rates(calibration)
        # One item for each device; 0 for those that can have no kernels.
        self.kernels: list[Linear] = []
        self.used: list[Linear] = []
        self.short_one: list[Linear] = []
        self.times: list[tuple[Linear, Linear]] = []
        self.chains: list[_Chains] = []
        self.curves: list[Curve | None] = []

    def device(self, d: int, most: int, limit: float) -> None:
        """Adds a device that may have `most` kernels, and its compute time."""
        chains = self._chains(d)
        self.chains.append(chains)
        lowest = self.quantum - self.short
        curve = None
        if most >= lowest:
            curve = self._curve(d, chains, lowest, most, limit)
        self.curves.append(curve)
        if curve is None:
            self.kernels.append(Linear())
            self.used.append(Linear())
            self.short_one.append(Linear())
            self.times.append((Linear(), Linear()))
            return
        program, most = self.program, min(most, curve.kernels[-1])
        most_units = (most + self.short) // self.quantum
        units = program.variable(most_units, integer=True)
        used = program.binary()
        short_one = program.binary() if self.short else Linear()
        program.at_least(units - used)
        program.at_least(most_units * used - units)
        kernels = self.quantum * units
        if self.short:
            program.at_least(used - short_one)
            kernels -= self.short * short_one
        program.at_least(most * used - kernels)
        self.kernels.append(kernels)
        self.used.append(used)
        self.short_one.append(short_one)
        computed = self._computed(units, short_one, kernels, curve)
        self.times.append(self._times(curve, used, computed))

    def whole(self, least_devices: int) -> None:
        """Demands that the kernels of all devices are those of the layer."""
        if not any(self.curves):
            raise NoSolution
        program = self.program
        program.equal(total(self.kernels), self.convolution.filters)
        if self.short:
            program.equal(total(self.short_one), 1)
        program.at_least(total(self.used), least_devices)

    def order(self) -> None:
        """Allows kernels on a device only after one that is never slower."""
        found = [d for d, c in enumerate(self.curves) if c is not None and d]
        found.sort(key=lambda d: (self._full(d), d))
        for i, j in itertools.pairwise(found):
            before, after = self.curves[i], self.curves[j]
            if before is None or after is None:
                continue
            worse = self._never_faster(i, j, before, after)
            if worse:
                self.program.at_least(self.used[i] - self.used[j])
            equal = worse and self._never_faster(j, i, after, before)
            if equal or (worse and after.rises()):
                self.program.at_least(self.kernels[i] - self.kernels[j])

    def seconds(self) -> Linear:
        """Adds both phases and the joins; returns the layer's time."""
        program, calibration = self.program, self.calibration
        join = 4 * calibration.join_s / self.unit
        batch = calibration.network.batch
        cost = Linear()
        if join:
            spread = program.variable(1)
            for used in self.used[1:]:
                if used.terms:
                    program.at_least(spread - used)
            values = self.convolution.output_values(batch)
            cost += 2 * join * values * spread
            if self.convolution.input_gradient:
                values = self.convolution.input_values(batch)
                cost += join * values * (total(self.used) - 1)
        for phase in range(len(_cost.PHASES)):
            lasts = program.variable()
            for chain in self._phase(phase):
                program.at_least(lasts - chain)
            cost += lasts
        return cost

    def _phase(self, phase: int) -> Iterator[Linear]:
        """All lower bounds of a phase's time."""
        backward = _cost.PHASES[phase] == _cost.BACKWARD
        count = total(self.used[1:])
        away = self.map * total(self.kernels[1:])
        inputs = (self.gradient if backward else self.input) * count
        out, into = (rate * self.unit for rate in self.rates)
        # All transfers at the chief's rates: (to devices, from devices).
        shared = (
            (away * (1 / out), inputs * (1 / into))
            if backward
            else (inputs * (1 / out), away * (1 / into))
        )
        moving = self.calibration.transfer_s / self.unit
        chief = self.times[0][phase] + moving * (away + inputs)
        if backward:
            chief += self.chains[0].update * self.kernels[0]
        yield chief
        for d, curve in enumerate(self.curves):
            if not d or curve is None:
                continue
            chains, used = self.chains[d], self.used[d]
            chain = self.times[d][phase] + chains.latency[phase] * used
            if backward:
                chain += chains.update * self.kernels[d]
            fixed = chains.fixed[phase] * used
            each = chains.each[phase] * self.kernels[d]
            own = (each, fixed) if backward else (fixed, each)
            for way_in in (own[0], shared[0]):
                for way_out in (own[1], shared[1]):
                    yield chain + way_in + way_out

    def _chains(self, d: int) -> _Chains:
        calibration, device = self.calibration, self.calibration.devices[d]
        update = device.update_s * self.convolution.parameters(1) / self.unit
        if d == 0:
            return _Chains((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), update)
        chief = calibration.chief.name
        to, back = (
            self._link(chief, device.name),
            self._link(device.name, chief),
        )
        returns = self.convolution.input_gradient
        return _Chains(
            latency=(
                (to.latency_s + back.latency_s) / self.unit,
                (to.latency_s + back.latency_s * returns) / self.unit,
            ),
            fixed=(
                self.input / to.bytes_per_s / self.unit,
                self.gradient / back.bytes_per_s / self.unit,
            ),
            each=(
                self.map / back.bytes_per_s / self.unit,
                self.map / to.bytes_per_s / self.unit,
            ),
            update=update,
        )

    def _link(self, source: str, target: str) -> Link:
        return self.calibration.link(source, target)

    def _curve(
        self, d: int, chains: _Chains, lowest: int, most: int, limit: float
    ) -> Curve | None:
        """Compute time, up to the most kernels that the limit allows."""
        device = self.calibration.devices[d]
        found = _curves.curve(
            self.calibration, device, self.convolution, lowest, most
        )
        # The least it can take: only its own transfers, and the fewest kernels
        # with that compute time.
        least = np.array(found.kernels) - (self.calibration.quantum - 1)
        chain = np.sum(found.seconds, axis=0) / self.unit
        chain = chain + sum(chains.latency) + sum(chains.fixed)
        chain = chain + (sum(chains.each) + chains.update) * least
        last = _curves.reach(found, chain, limit * _MARGIN)
        if last is None or last < lowest:
            return None
        if last >= found.kernels[-1]:
            return found
        return _curves.curve(
            self.calibration, device, self.convolution, lowest, last
        )

    def _computed(
        self, units: Linear, short_one: Linear, kernels: Linear, curve: Curve
    ) -> Linear:
        """Kernels rounded up to the calibration's quantum, the x_d."""
        step = self.calibration.quantum
        if self.quantum % step == 0:
            return (
                self.quantum * units - step * (self.short // step) * short_one
            )
        steps = self.program.variable(curve.kernels[-1] // step, integer=True)
        computed = step * steps
        self.program.at_least(computed - kernels)
        self.program.at_least(kernels + (step - 1) - computed)
        return computed

    def _times(
        self, curve: Curve, used: Linear, computed: Linear
    ) -> tuple[Linear, Linear]:
        """Compute time in each phase, the t_d."""
        program = self.program
        pieces = curve.pieces()
        shares = [(pieces[0], used, computed)]
        if len(pieces) > 1:
            shares = [(p, program.binary(), program.variable()) for p in pieces]
            program.equal(total(z for _, z, _ in shares) - used)
            program.equal(total(x for _, _, x in shares) - computed)
        for piece, chosen, share in shares:
            program.at_least(share - piece.kernels[0] * chosen)
            program.at_least(piece.kernels[-1] * chosen - share)
        forward, backward = (
            total(self._highest(*share, phase) for share in shares)
            for phase in range(len(_cost.PHASES))
        )
        return forward, backward

    def _highest(
        self, piece: Curve, chosen: Linear, share: Linear, phase: int
    ) -> Linear:
        lines = [
            (slope / self.unit) * share + (at_zero / self.unit) * chosen
            for slope, at_zero in piece.lines(phase)
        ]
        if len(lines) == 1:
            return lines[0]
        time = self.program.variable()
        for line in lines:
            self.program.at_least(time - line)
        return time

    def _full(self, d: int) -> float:
        """Time of a device that has all kernels, transfers included."""
        curve, chains = self.curves[d], self.chains[d]
        if curve is None:
            return float("inf")
        widest = self.calibration.devices[d].times[self.convolution.name]
        filters = self.convolution.filters
        compute = widest.at("forward", filters) + widest.at(
            "kernel_gradient", filters
        )
        each = sum(chains.each) + chains.update
        return (
            compute / self.unit
            + filters * each
            + sum(chains.latency)
            + sum(chains.fixed)
        )

    def _never_faster(
        self, i: int, j: int, before: Curve, after: Curve
    ) -> bool:
        """Whether j is never faster than i, and can have no more kernels."""
        a, b = self.chains[i], self.chains[j]
        pairs = itertools.chain(
            zip(a.latency, b.latency, strict=True),
            # `fixed` depends on the same rates.
            zip(a.each, b.each, strict=True),
            [(a.update, b.update)],
            [(after.kernels[-1], before.kernels[-1])],
        )
        return all(x <= y for x, y in pairs) and before.below(after)
