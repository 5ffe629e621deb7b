"""Makes plans from calibrations: how many kernels each device gets."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from collections.abc import Sequence

from tf_convpar import plans
from tf_convpar.machines import short
from tf_convpar.planner.star import _cost
from tf_convpar.planner.star import _memory
from tf_convpar.planner.star import first_guesses
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._network import fingerprint
from tf_convpar.planner.star._optimum import allocate
from tf_convpar.planner.star._optimum import best_split
from tf_convpar.plans import FILTERS
from tf_convpar.plans import Plan
from tf_convpar.plans import Prediction
from tf_convpar.plans import busiest
from tf_convpar.plans import over_memory
from tf_convpar.units import seconds_text


def plan(calibration: StarCalibration, quantum: int | None = None) -> Plan:
    """The plan with the shortest step that this calibration allows.

    ```python
    best = plan(calibration)
    best["conv2d"]  # (300, 200)
    best.prediction.step_s  # 0.512
    best.reason  # "2 devices take 512 ms, 1.7 times as fast as ..."
    ```

    Args:
        calibration: Measurements of the devices.
        quantum: Number of kernels in a unit that is given out, except for what
            is left of a layer; None for the calibration's.

    Returns:
        The plan. Where that is fastest, it leaves a device, or all but one,
        without kernels. Its `reason` says so.

    Raises:
        ValueError: No allocation fits the memory of the devices.
        RuntimeError: There is no proof within a minute.
    """
    counts = allocate(calibration, quantum)
    prediction = _cost.predict(calibration, counts)
    best = _plan(calibration, counts, prediction)
    if len(best.used) > 1:
        reason = _gain(best, prediction.step_s)
    elif len(best.devices) == 1:
        reason = "There is one device only."
    else:
        reason = f"One device is fastest: {short(best.used[0])} alone takes "
        reason += f"{seconds_text(prediction.step_s)} a step, "
        split = best_split(calibration, counts, quantum)
        if split is None:
            reason += "and no layer's kernels can be shared."
        else:
            reason += _why_not(_cost.predict(calibration, split))
    return dataclasses.replace(best, reason=reason)


def plan_of(
    calibration: StarCalibration, allocation: Mapping[str, Sequence[int]]
) -> Plan:
    """The plan with these kernels on each device.

    ```python
    plan_of(calibration, {"conv2d": (250, 250)}).prediction.step_s
    ```

    Args:
        calibration: Measurements of the devices.
        allocation: For every convolution, by its layer's name, kernels per
            device that sum to its filters.

    Returns:
        The plan, with its prediction.

    Raises:
        ValueError: A layer is missing or unknown, its kernels do not sum up,
            or a device lacks the memory.
    """
    unknown = set(allocation) - {c.name for c in calibration.network}
    if unknown:
        raise ValueError(
            f"Expected layers {[c.name for c in calibration.network]}. "
            f"Received: {sorted(unknown)} besides."
        )
    counts = {
        c.name: _cost.counts_of(calibration, c, allocation)
        for c in calibration.network
    }
    prediction = _cost.predict(calibration, counts)
    as_given = _plan(calibration, counts, prediction)
    problem = over_memory(
        counts, as_given.devices, as_given.memory_bytes, as_given.layer_bytes
    )
    if problem:
        raise ValueError(
            f"Expected kernels that fit the memory of devices. Received "
            f"counts for which {problem}."
        )
    reason = f"As given: {_gain(as_given, prediction.step_s)}"
    return dataclasses.replace(as_given, reason=reason)


def load_plan(
    path: str | os.PathLike[str], calibration: StarCalibration
) -> Plan:
    """Reads a plan from a JSON file, and predicts its step by a calibration.

    ```python
    load_plan("plan.json", calibration).prediction.step_s
    ```

    Args:
        path: A file that `tf_convpar.plans.load` reads.
        calibration: Measurements of the same network and devices.

    Returns:
        The plan. It has a prediction even if its counts were changed by hand.

    Raises:
        ValueError: `tf_convpar.plans.load` would raise it, or the calibration
            is of another network or other devices. The message says which.
        OSError: The file cannot be read.
    """
    stored = plans.load(path)
    expected = fingerprint(calibration.network)
    if expected != stored.fingerprint:
        layers = ", ".join(c.name for c in calibration.network)
        raise ValueError(
            f"Expected {expected!r}, as of the calibration's network, whose "
            f"layers are {layers}, at fingerprint of {os.fspath(path)}. "
            f"Received: {stored.fingerprint!r}."
        )
    names = tuple(device.name for device in calibration.devices)
    if names != stored.devices:
        raise ValueError(
            f"Expected the calibration's devices, {', '.join(names)}, at "
            f"devices of {os.fspath(path)}. Received: "
            f"{', '.join(stored.devices)}."
        )
    predicted = plan_of(calibration, stored.allocation)
    # A file whose counts were edited has no prediction, and a reason that no
    # longer holds.
    if predicted.prediction == stored.prediction:
        return dataclasses.replace(predicted, reason=stored.reason)
    return predicted


def _plan(
    calibration: StarCalibration,
    counts: Mapping[str, tuple[int, ...]],
    prediction: Prediction,
) -> Plan:
    """The plan with these counts, and without a reason."""
    equal = first_guesses.equal(calibration)
    equal_s = None
    if _memory.fits(calibration, equal):
        equal_s = _cost.predict(calibration, equal).step_s
    return Plan(
        allocation=counts,
        devices=tuple(device.name for device in calibration.devices),
        prediction=prediction,
        single_s=single_s(calibration),
        equal_s=equal_s,
        reason="",
        fingerprint=fingerprint(calibration.network),
        memory_bytes=tuple(d.memory_bytes for d in calibration.devices),
        splits=dict.fromkeys(counts, FILTERS),
        layer_bytes={
            c.name: _memory.layer_bytes(calibration, c)
            for c in calibration.network
        },
    )


def single_s(calibration: StarCalibration) -> dict[str, float]:
    """Seconds of a step with all kernels on one device, by its name.

    They are for the devices that have the memory.
    """
    return {
        device.name: _cost.predict(calibration, counts).step_s
        for device, counts in zip(
            calibration.devices,
            first_guesses.singles(calibration),
            strict=True,
        )
        if _memory.fits(calibration, counts)
    }


def _gain(plan: Plan, step_s: float) -> str:
    """Says what a plan gains, and which devices it leaves out."""
    used = plan.used
    text = f"{len(used)} devices take" if len(used) > 1 else "one device takes"
    text += f" {seconds_text(step_s)} a step"
    if plan.best_single:
        name, alone_s = plan.best_single
        times = f"{alone_s / step_s:.2f} times" if step_s else "just"
        text += (
            f", {times} as fast as {short(name)} alone, the fastest device, "
            f"with {seconds_text(alone_s)}"
        )
    else:
        text += "; no device has the memory for all kernels"
    out = [short(name) for name in plan.devices if name not in used]
    if out and len(used) > 1:
        names = ", ".join(out) if len(out) < 5 else f"{len(out)} devices"
        text += f"; {names} would not make it shorter"
    return f"{text}."


def _why_not(split: Prediction) -> str:
    """Says how long the best split takes, and who is busy meanwhile."""
    text = f"the best split over several devices {seconds_text(split.step_s)}"
    for links, what in ((True, ", in which link"), (False, " and device")):
        busy = busiest(split, links=links)
        if busy:
            name, seconds = busy
            text += f"{what} {short(name)} is busy for {seconds_text(seconds)}"
    return f"{text}."
