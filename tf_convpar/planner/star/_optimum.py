"""The allocation with the shortest step, proven.

`allocate` minimises `_cost.predict(...).step_s` itself, as a mixed-integer
linear program for HiGHS. Layers meet only in the memory of devices: each is
solved alone, and all together only if the result does not fit.

A layer with N kernels gives out U = ceil(N / q) units of q kernels, one of
which is r = U q - N kernels short. For each device d, with the chief as d = 0:

    m_d  integer, its units           u_d  binary, whether it has any
    w_d  binary, whether it has the unit that is short
    u_d <= m_d <= U u_d,  w_d <= u_d,  sum m_d = U,  sum w_d = 1 (if r > 0)
    n_d = q m_d - r w_d               its kernels
    k = sum over d >= 1 of u_d        devices that the chief sends to

*Compute time* is piecewise linear (`_curves`) in x_d, which is n_d rounded up
to the calibration's quantum Q: x_d = q m_d - Q floor(r / Q) w_d if Q divides
q, else Q times an integer that is held to n_d <= x_d <= n_d + Q - 1. Where
the curve is convex in both phases, t_d is at least each of its lines
a x_d + b u_d, which is 0 for u_d = 0. A curve of several convex pieces gets a
binary z_j and a share x_j of x_d for each,

    sum z_j = u_d,  sum x_j = x_d,  low_j z_j <= x_j <= high_j z_j,

and t_d is the sum over pieces of the highest line a x_j + b z_j: the multiple
choice model of piecewise linear functions (Vielma, Ahmed & Nemhauser, "Mixed-
Integer Models for Nonseparable Piecewise-Linear Optimization", 2010), whose
relaxation is the convex hull.

*Phases*: F (forward) and B (backward) are at least the chain of each device,
in_d + t_d + update_d n_d + out_d. Each of `in` and `out` takes the latency
and the longer of two times: the device's own bytes at its link's rate, and the
bytes of all devices at the chief's rate. So there are four constraints a chain,
one for each pair of times. Own bytes are 0 where u_d = 0. Shared bytes are not,
but then the constraint says no more than that of any device that is used. If
none is used, shared bytes are 0 too. So nothing needs a big-M.

*Joins*: s >= u_d for d >= 1 says that the layer is spread. The sum of the
input's gradient has sum u_d terms.

*Speed*: what a chain cannot reach within the time of a known allocation is cut
off: kernels of slow devices, and devices behind slow links. If device i is
never slower than j, in computing and in transfers, they may be swapped wherever
j has kernels and i none. So u_i >= u_j, and n_i >= n_j if j's curve rises.
Every swap moves kernels to the front, so all such orders hold together in one
of the best allocations.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from tf_convpar.planner.linear_program import LinearProgram
from tf_convpar.planner.linear_program import NoSolution
from tf_convpar.planner.linear_program import total
from tf_convpar.planner.star import _cost
from tf_convpar.planner.star import _layer
from tf_convpar.planner.star import _memory
from tf_convpar.planner.star import first_guesses
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._layer import Shares
from tf_convpar.planner.star._network import StarConvolution

# The shortest known time, in the unit of time that HiGHS gets. Its tolerances
# are about 1e-6 of that unit.
_SCALE = 1e4
# Part of the step that a split must save to be taken instead of one device.
_TIE = 1e-9
_TIME_LIMIT_S = 60.0

Counts = dict[str, tuple[int, ...]]


def allocate(
    calibration: StarCalibration, quantum: int | None = None
) -> Counts:
    """The kernels of each layer and device for the shortest predicted step.

    ```python
    allocate(calibration)  # {"conv2d": (300, 200), "conv2d_1": (900, 600)}
    ```

    Args:
        calibration: Measurements of the devices.
        quantum: Number of kernels in a unit that is given out; None for the
            calibration's. One device gets a unit with what is left of a layer.

    Returns:
        For each layer, the kernels of each of the calibration's devices, in its
        order. A layer stays on one device where no split is faster.

    Raises:
        ValueError: No allocation fits the memory of the devices.
        RuntimeError: There is no proof within a minute.
    """
    problem = _problem(calibration, quantum)
    counts: Counts = {}
    for convolution in calibration.network:
        counts |= _alone(problem, convolution)
    if _memory.fits(calibration, counts):
        return counts
    return _together(problem)


def best_split(
    calibration: StarCalibration, counts: Counts, quantum: int | None = None
) -> Counts | None:
    """The best allocation that spreads one layer, and leaves the others.

    Args:
        calibration: Measurements of the devices.
        counts: Allocation by `allocate`, which spreads no layer.
        quantum: Number of kernels in a unit; see `allocate`.

    Returns:
        The allocation; None if there is none, or none that fits the memory.
    """
    problem = _problem(calibration, quantum)
    best, shortest = None, float("inf")
    for convolution in calibration.network:
        try:
            candidate = counts | _alone(problem, convolution, least_devices=2)
        except ValueError:  # It has one unit, or there is no memory.
            continue
        seconds = _cost.predict(calibration, candidate).step_s
        if seconds < shortest and _memory.fits(calibration, candidate):
            best, shortest = candidate, seconds
    return best


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Arguments of `allocate`, checked.

    Attributes:
        calibration: Measurements of the devices.
        quantum: Number of kernels in a unit.
        deadline: Time at which to give up, by `time.monotonic`.
    """

    calibration: StarCalibration
    quantum: int
    deadline: float


def _problem(calibration: StarCalibration, quantum: int | None) -> _Problem:
    if quantum is None:
        quantum = calibration.quantum
    if not isinstance(quantum, int) or quantum < 1:
        raise ValueError(
            "Expected `quantum` to be a number of kernels, at least 1. "
            f"Received: quantum={quantum!r}."
        )
    return _Problem(calibration, quantum, time.monotonic() + _TIME_LIMIT_S)


def _alone(
    problem: _Problem, convolution: StarConvolution, least_devices: int = 1
) -> Counts:
    """The best allocation of a layer, as if it were the only one."""
    calibration = problem.calibration
    alone = _only(calibration, [convolution])
    highest = _memory.highest(calibration, convolution)
    name, filters = convolution.name, convolution.filters
    known = first_guesses.guesses(
        alone, convolution, problem.quantum, highest, least_devices
    )
    steps = [_cost.predict(alone, {name: counts}).step_s for counts in known]
    shortest = min(steps, default=float("inf"))
    units = -(-filters // problem.quantum)
    step = shortest
    # Else there is nothing to split, or nothing to gain.
    if not known or (len(highest) > 1 and units > 1 and shortest > 0):
        solution = _solve(
            problem, [convolution], [highest], least_devices, shortest
        )
        step = _cost.predict(alone, solution).step_s
    for counts, seconds in zip(known, steps, strict=True):
        # Allocations to one device come first.
        if seconds <= step * (1 + _TIE):
            return {name: counts}
    return solution


def _together(problem: _Problem) -> Counts:
    """The best allocation of all layers within the memory of devices."""
    calibration = problem.calibration
    network = list(calibration.network)
    highest = [_memory.highest(calibration, c) for c in network]
    spare = [0] * len(calibration.devices)
    for _ in range(3):
        solution = _solve(problem, network, highest, spare=spare)
        over = _memory.excess(calibration, solution)
        if not any(over):
            break
        # The excess is within HiGHS' tolerances: as much is left free.
        spare = [s + o for s, o in zip(spare, over, strict=True)]
    else:
        raise RuntimeError(
            "Expected an allocation that fits the memory of devices. Received "
            f"{solution}. This is a bug."
        )
    step = _cost.predict(calibration, solution).step_s
    for counts in first_guesses.singles(calibration):
        if _memory.fits(calibration, counts):
            seconds = _cost.predict(calibration, counts).step_s
            if seconds <= step * (1 + _TIE):
                return counts
    return solution


def _solve(
    problem: _Problem,
    layers: Sequence[StarConvolution],
    highest: Sequence[Sequence[int]],
    least_devices: int = 1,
    shortest: float = float("inf"),
    spare: Sequence[int] | None = None,
) -> Counts:
    """Solves the program of some layers.

    Args:
        problem: Calibration, unit and deadline.
        layers: Layers of the program.
        highest: For each layer, the most kernels of each device.
        least_devices: Least number of devices that must have kernels of each
            layer.
        shortest: Seconds of an allocation that is known.
        spare: Bytes to leave free on each device; None if no layer meets
            another, so that `highest` says all about memory.
    """
    calibration = _only(problem.calibration, layers)
    unit = _unit(calibration, shortest)
    program = LinearProgram()
    shares: list[Shares] = []
    try:
        for convolution, most in zip(layers, highest, strict=True):
            shares.append(
                _layer.add(
                    program,
                    calibration,
                    convolution,
                    problem.quantum,
                    most,
                    unit=unit,
                    limit=shortest / unit,
                    least_devices=least_devices,
                    # With several layers, a swap would be one of all of them.
                    ordered=len(layers) == 1,
                )
            )
        if spare is not None:
            _within_memory(program, calibration, shares, spare)
        program.minimise(total(share.seconds for share in shares))
        values = program.solve(problem.deadline - time.monotonic())
    except NoSolution:
        message = _memory.message(problem.calibration, problem.quantum)
        raise ValueError(message) from None
    counts = {
        convolution.name: share.counts(values)
        for convolution, share in zip(layers, shares, strict=True)
    }
    promised = unit * sum(share.seconds.of(values) for share in shares)
    step = _cost.predict(calibration, counts).step_s
    if abs(step - promised) > 1e-6 * max(step, promised, unit):
        raise RuntimeError(
            "Expected the solver and the prediction to agree. Received "
            f"{promised} s and {step} s for {counts}. This is a bug."
        )
    return counts


def _within_memory(
    program: LinearProgram,
    calibration: StarCalibration,
    shares: Sequence[Shares],
    spare: Sequence[int],
) -> None:
    sizes = [_memory.layer_bytes(calibration, c) for c in calibration.network]
    # In units of a kernel's bytes: in bytes, tolerances would hide kernels.
    unit = min(each for _, each in sizes)
    for d, device in enumerate(calibration.devices):
        if device.memory_bytes is None:
            continue
        needed = total(
            fixed / unit * share.used[d] + each / unit * share.kernels[d]
            for (fixed, each), share in zip(sizes, shares, strict=True)
        )
        program.at_least((device.memory_bytes - spare[d]) / unit - needed)


def _only(
    calibration: StarCalibration, layers: Sequence[StarConvolution]
) -> StarCalibration:
    """The calibration of these layers alone, without the rest of a step."""
    network = dataclasses.replace(
        calibration.network, convolutions=tuple(layers)
    )
    return dataclasses.replace(calibration, network=network, rest_s=0.0)


def _unit(calibration: StarCalibration, shortest: float) -> float:
    """Seconds of the program's unit of time."""
    if shortest == float("inf"):
        # Devices that have no memory for it count as well.
        steps = [
            _cost.predict(calibration, counts).step_s
            for counts in first_guesses.singles(calibration)
        ]
        shortest = min((s for s in steps if s > 0), default=1.0)
    return shortest / _SCALE
