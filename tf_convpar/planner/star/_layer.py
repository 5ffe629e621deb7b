"""One layer in the allocation's linear program, which `_optimum` derives."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from tf_convpar.planner.linear_program import Linear
from tf_convpar.planner.linear_program import LinearProgram
from tf_convpar.planner.linear_program import NoSolution
from tf_convpar.planner.linear_program import total
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
        # Whole numbers, within HiGHS' tolerances.
        whole = np.round(values)
        return tuple(round(kernels.of(whole)) for kernels in self.kernels)


@dataclasses.dataclass
class _Device:
    """A device in a layer's program; times are in the program's unit.

    Attributes:
        index: Index in the calibration.
        latency: Latency of both transfers, for each phase.
        fixed: Time of a whole input to or from the device, for each phase.
        each: Time of one kernel's feature maps, for each phase.
        update: Time of one kernel's update, backward.
        curve: Compute time over kernels; None if it can have no kernels.
        kernels: Its kernels, the n_d.
        used: Whether it has any kernels, the u_d.
        short_one: Whether it has the unit that is short, the w_d.
        times: Compute time in each phase, the t_d.
    """

    index: int
    latency: tuple[float, float]
    fixed: tuple[float, float]
    each: tuple[float, float]
    update: float
    curve: Curve | None = None
    kernels: Linear = dataclasses.field(default_factory=Linear)
    used: Linear = dataclasses.field(default_factory=Linear)
    short_one: Linear = dataclasses.field(default_factory=Linear)
    times: tuple[Linear, ...] = dataclasses.field(
        default_factory=lambda: tuple(Linear() for _ in _cost.PHASES)
    )

    def never_slower(self, other: _Device) -> bool:
        """Whether the other is never faster, and can have no more kernels."""
        curve, other_curve = self.curve, other.curve
        if curve is None or other_curve is None:
            return False
        pairs = itertools.chain(
            zip(self.latency, other.latency, strict=True),
            # `fixed` depends on the same rates.
            zip(self.each, other.each, strict=True),
            [(self.update, other.update)],
            [(other_curve.kernels[-1], curve.kernels[-1])],
        )
        return all(x <= y for x, y in pairs) and curve.below(other_curve)


def add(
    program: LinearProgram,
    calibration: StarCalibration,
    convolution: StarConvolution,
    quantum: int,
    highest: Sequence[int],
    *,
    unit: float,
    limit: float,
    least_devices: int,
    ordered: bool,
) -> Shares:
    """Adds a layer to a program.

    Args:
        program: The program.
        calibration: Measurements of the devices.
        convolution: The layer.
        quantum: Kernels in a unit of the allocation, q.
        highest: The most kernels that each device may have.
        unit: Seconds in the program's unit of time.
        limit: Upper bound of the layer's time, in that unit.
        least_devices: Fewest devices with kernels.
        ordered: Whether to order devices of which one is never slower.

    Raises:
        NoSolution: No device can have kernels.
    """
    layer = _Layer(program, calibration, convolution, quantum, unit)
    devices = [layer.device(d, most, limit) for d, most in enumerate(highest)]
    layer.totals(devices, least_devices)
    if ordered:
        layer.order(devices)
    return Shares(
        tuple(device.kernels for device in devices),
        tuple(device.used for device in devices),
        layer.seconds(devices),
    )


class _Layer:
    """Adds devices one by one, then the constraints between them."""

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

    def device(self, d: int, most: int, limit: float) -> _Device:
        """Adds a device that may have `most` kernels, and its compute time."""
        program, device = self.program, self._transfers(d)
        lowest = self.quantum - self.short
        if most >= lowest:
            device.curve = self._curve(device, lowest, most, limit)
        curve = device.curve
        if curve is None:
            return device
        most = min(most, curve.kernels[-1])
        most_units = (most + self.short) // self.quantum
        units = program.variable(most_units, integer=True)
        device.used = program.binary()
        program.at_least(units - device.used)
        program.at_least(most_units * device.used - units)
        device.kernels = self.quantum * units
        if self.short:
            device.short_one = program.binary()
            program.at_least(device.used - device.short_one)
            device.kernels -= self.short * device.short_one
        program.at_least(most * device.used - device.kernels)
        computed = self._computed(units, device, curve)
        device.times = self._times(curve, device.used, computed)
        return device

    def totals(self, devices: Sequence[_Device], least_devices: int) -> None:
        """Demands that kernels of all devices sum to the layer's."""
        if all(device.curve is None for device in devices):
            raise NoSolution
        program, filters = self.program, self.convolution.filters
        program.equal(total(device.kernels for device in devices), filters)
        if self.short:
            program.equal(total(device.short_one for device in devices), 1)
        program.at_least(
            total(device.used for device in devices), least_devices
        )

    def order(self, devices: Sequence[_Device]) -> None:
        """Allows kernels on a device only after one that is never slower."""
        ranked = [d for d in devices[1:] if d.curve is not None]
        ranked.sort(key=lambda d: (self._full(d), d.index))
        for one, other in itertools.pairwise(ranked):
            worse = one.never_slower(other)
            if worse:
                self.program.at_least(one.used - other.used)
            equal = worse and other.never_slower(one)
            if equal or (worse and other.curve and other.curve.rises()):
                self.program.at_least(one.kernels - other.kernels)

    def seconds(self, devices: Sequence[_Device]) -> Linear:
        """Adds phases and joins; returns the layer's time."""
        program, calibration = self.program, self.calibration
        join = 4 * calibration.join_s / self.unit
        batch = calibration.network.batch
        cost = Linear()
        if join:
            spread = program.variable(1)
            for device in devices[1:]:
                if device.used.terms:
                    program.at_least(spread - device.used)
            values = self.convolution.output_values(batch)
            cost += 2 * join * values * spread
            if self.convolution.input_gradient:
                values = self.convolution.input_values(batch)
                used = total(device.used for device in devices)
                cost += join * values * (used - 1)
        for phase in range(len(_cost.PHASES)):
            lasts = program.variable()
            for chain in self._phase(devices, phase):
                program.at_least(lasts - chain)
            cost += lasts
        return cost

    def _phase(
        self, devices: Sequence[_Device], phase: int
    ) -> Iterator[Linear]:
        """All lower bounds of a phase's time."""
        chief, *others = devices
        backward = _cost.PHASES[phase] == _cost.BACKWARD
        away = self.map * total(device.kernels for device in others)
        inputs = self.gradient if backward else self.input
        inputs_away = inputs * total(device.used for device in others)
        # All transfers at the chief's rates: (to devices, from devices).
        moved = (away, inputs_away) if backward else (inputs_away, away)
        shared = [
            bytes_ * (1 / (rate * self.unit))
            for bytes_, rate in zip(moved, self.rates, strict=True)
        ]
        moving = self.calibration.transfer_s / self.unit
        chain = chief.times[phase] + moving * (away + inputs_away)
        if backward:
            chain += chief.update * chief.kernels
        yield chain
        for device in others:
            if device.curve is None:
                continue
            chain = device.times[phase] + device.latency[phase] * device.used
            if backward:
                chain += device.update * device.kernels
            fixed = device.fixed[phase] * device.used
            each = device.each[phase] * device.kernels
            transfers = (each, fixed) if backward else (fixed, each)
            for way_in in (transfers[0], shared[0]):
                for way_out in (transfers[1], shared[1]):
                    yield chain + way_in + way_out

    def _transfers(self, d: int) -> _Device:
        """A device without kernels, and what its transfers take."""
        calibration, device = self.calibration, self.calibration.devices[d]
        update = device.update_s * self.convolution.parameters(1) / self.unit
        if d == 0:
            return _Device(d, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), update)
        chief = calibration.chief.name
        to = calibration.link(chief, device.name)
        back = calibration.link(device.name, chief)
        returns = self.convolution.input_gradient
        return _Device(
            d,
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

    def _curve(
        self, device: _Device, lowest: int, most: int, limit: float
    ) -> Curve | None:
        """Compute time, up to the kernels that the limit allows."""
        spec = self.calibration.devices[device.index]
        about = self.calibration, spec, self.convolution, lowest
        curve = _curves.curve(*about, most)
        # Lower bounds: own transfers, and the fewest kernels of each time.
        least = np.array(curve.kernels) - (self.calibration.quantum - 1)
        chain = np.sum(curve.seconds, axis=0) / self.unit
        chain = chain + sum(device.latency) + sum(device.fixed)
        chain = chain + (sum(device.each) + device.update) * least
        last = _curves.reach(curve, chain, limit * _MARGIN)
        if last is None or last < lowest:
            return None
        return _curves.curve(*about, last)

    def _computed(self, units: Linear, device: _Device, curve: Curve) -> Linear:
        """Kernels rounded up to the calibration's quantum, the x_d."""
        step = self.calibration.quantum
        if self.quantum % step == 0:
            missing = step * (self.short // step)
            return self.quantum * units - missing * device.short_one
        steps = self.program.variable(curve.kernels[-1] // step, integer=True)
        computed = step * steps
        self.program.at_least(computed - device.kernels)
        self.program.at_least(device.kernels + (step - 1) - computed)
        return computed

    def _times(
        self, curve: Curve, used: Linear, computed: Linear
    ) -> tuple[Linear, ...]:
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
        return tuple(
            total(self._highest(*share, phase) for share in shares)
            for phase in range(len(_cost.PHASES))
        )

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

    def _full(self, device: _Device) -> float:
        """Time of a device that has all kernels, transfers included."""
        spec = self.calibration.devices[device.index]
        filters = self.convolution.filters
        compute = sum(
            _cost.compute_s(
                self.calibration, spec, self.convolution, phase, filters
            )
            for phase in _cost.PHASES
        )
        return (
            compute / self.unit
            + filters * sum(device.each)
            + sum(device.latency)
            + sum(device.fixed)
        )
