"""Plans a whole model: each convolution on the chief, by filters or samples."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

import keras

from tf_convpar.machines import short
from tf_convpar.planner import balancing
from tf_convpar.planner import solver
from tf_convpar.planner import star
from tf_convpar.planner import step
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import load
from tf_convpar.planner._costs import Costs
from tf_convpar.planner.call_ways import CHIEF
from tf_convpar.planner.call_ways import DEFAULTS
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.call_ways import filters_of
from tf_convpar.planner.linear_program import NoProof
from tf_convpar.planner.linear_program import NoSolution
from tf_convpar.planner.star._of_measurements import of_measurements
from tf_convpar.plans import Plan
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.units import seconds_text

# A split must be predicted to save this part of the step. Predictions err by as
# much in the worst of the measured cases (`benchmarks/cluster`), and a model
# that is not split has no cluster that can fail.
WORTH = 0.1
# The methods of planning, the second of which is paper 1's.
MODEL = "model"
STAR = "star"
METHODS = (MODEL, STAR)


def plan(
    model: keras.Model,
    calibration: Calibration | str | os.PathLike[str],
    wire_dtype: str | None = None,
    moments: str = "all",
    by: str = MODEL,
) -> Plan:
    """The plan with the shortest step that these measurements allow.

    ```python
    calibration = convpar.calibrate(model, strategy, batch_size=32)
    plan = convpar.plan(model, calibration)
    model = convpar.parallelize(model, plan)
    ```

    Args:
        model: Model that was measured, or one like it.
        calibration: Measurements of the model on the devices, or their file,
            which `Calibration.save` or `convpar calibrate` wrote.
        wire_dtype: Dtype in which tensors travel; None for their own.
        moments: As for `parallelize`.
        by: Method. `"model"` plans all layers together, as they run. `"star"`
            is that of paper 1: each convolution is split by filters and by
            itself, and its feature maps are joined on the chief.

    Returns:
        The plan. All convolutions stay on the chief unless a split is
        predicted to save a tenth of the step, or the chief lacks the memory.
        The star splits a layer for any gain.

    Raises:
        ValueError: The calibration is of another model, its file is damaged,
            no split fits the memory of the devices, or there is no such method.
        RuntimeError: No cut has a proof within half a minute.
    """
    if not isinstance(calibration, Calibration):
        calibration = load(calibration)
    graph = calls_of(model)
    work_keys.check(graph, calibration.model)
    if by not in METHODS:
        raise ValueError(
            f"Expected `by` to be one of {', '.join(METHODS)}. Received: "
            f"by={by!r}."
        )
    if by == STAR:
        return star.plan(of_measurements(model, calibration, wire_dtype))
    settings = Settings(wire_dtype, moments)
    return plan_graph(graph, calibration, settings, WORTH)


def plan_graph(
    graph: Graph,
    calibration: Calibration,
    settings: Settings = DEFAULTS,
    worth: float = WORTH,
) -> Plan:
    """Plans a graph that has been read; see `plan`.

    `worth` is the part of a step that a split must be predicted to save.
    """
    candidates: list[_Candidate] = []
    singles: dict[str, float] = {}
    unproven: NoProof | None = None
    for cut in balancing.cuts(graph, calibration, settings):
        costs = Costs(graph, calibration, cut)
        singles = singles or singles_of(costs)
        try:
            # Most cuts are worse than the best one so far: to prove that takes
            # little time.
            known = min((c.seconds for c in candidates), default=None)
            choice = solver.choose(costs, below=known)
            candidates.append(
                _Candidate(costs, choice, step.step_s(costs, choice))
            )
        except NoSolution:
            continue
        except NoProof as error:
            unproven = error  # Plans of other cuts are as good as they were.
    if not candidates:
        if unproven is not None:
            raise unproven
        limits = {d.name: d.memory_bytes for d in calibration.devices}
        raise ValueError(
            "Expected devices with the memory for a training step of "
            f"'{graph.name}' at batch {calibration.batch}. Received "
            f"{limits} bytes, in which no split fits. Take smaller batches "
            "or more devices."
        )
    best = min(candidates, key=lambda c: c.seconds)
    alone = singles.get(calibration.devices[0].name)
    splits = set(best.choice.values()) != {CHIEF}
    if alone is None or (splits and best.seconds <= (1 - worth) * alone):
        reason = _reason(best, singles)
        return _plan(graph, calibration, best, singles, reason)
    chief = short(calibration.devices[0].name)
    reason = f"Not split: {seconds_text(alone)} a step on {chief} alone, "
    if splits and best.seconds < alone:
        reason += (
            f"and {seconds_text(best.seconds)} predicted with the best split, "
            f"which has to save {100 * worth:.0f} % to be worth it."
        )
    else:
        reason += "and no split is predicted to be faster."
    return _unsplit_plan(graph, calibration, settings, singles, reason)


def by_samples(
    model: keras.Model, calibration: Calibration, settings: Settings
) -> Plan | None:
    """The shortest plan by samples only, on two devices or more.

    A layer that has none to give, such as a large dense one, is split by
    filters, or stays on the chief.

    Args:
        model: Model that was measured, or one like it.
        calibration: Measurements of the model on the devices.
        settings: What else changes what travels.

    Returns:
        The plan; None if there is one device, or devices lack the memory.
    """
    graph = calls_of(model)
    candidates = []
    for cut in balancing.cuts(graph, calibration, settings):
        if sum(map(bool, cut.shares)) < 2:
            continue
        costs = Costs(graph, calibration, cut)
        choice = {
            call.name: next(w for w in (SAMPLES, FILTERS, CHIEF) if w in ways)
            for call, ways in zip(graph.calls, costs.ways.of, strict=True)
            if call.splits
        }
        needed = step.memory_bytes(costs, choice)
        if all(
            device.memory_bytes is None or bytes_ <= device.memory_bytes
            for device, bytes_ in zip(calibration.devices, needed, strict=True)
        ):
            candidates.append(
                _Candidate(costs, choice, step.step_s(costs, choice))
            )
    if not candidates:
        return None
    best = min(candidates, key=lambda c: c.seconds)
    singles = singles_of(best.costs)
    return _plan(graph, calibration, best, singles, _reason(best, singles))


def unsplit_plan(
    model: keras.Model,
    calibration: Calibration,
    settings: Settings,
    reason: str,
) -> Plan:
    """The plan that leaves all convolutions on the chief.

    Args:
        model: Model that was measured, or one like it.
        calibration: Measurements of the model on the devices.
        settings: What else changes what travels.
        reason: Why, for the plan.
    """
    graph = calls_of(model)
    cut = balancing.unsplit(graph, calibration, settings)
    singles = singles_of(Costs(graph, calibration, cut))
    return _unsplit_plan(graph, calibration, settings, singles, reason)


def _unsplit_plan(
    graph: Graph,
    calibration: Calibration,
    settings: Settings,
    singles: Mapping[str, float],
    reason: str,
) -> Plan:
    # A cut with one device, for which none has to wait.
    cut = balancing.unsplit(graph, calibration, settings)
    choice = {call.name: CHIEF for call in graph.convolutions}
    seconds = singles[calibration.devices[0].name]
    candidate = _Candidate(Costs(graph, calibration, cut), choice, seconds)
    return _plan(graph, calibration, candidate, singles, reason)


def singles_of(costs: Costs) -> dict[str, float]:
    """Seconds of a step on each device alone, if it has the memory."""
    needed = sum(
        cost[CHIEF].memory[0] for cost in costs.of if cost[CHIEF].memory
    )
    seconds = balancing.alone(costs.graph, costs.calibration)
    return {
        device.name: seconds[device.name]
        for device in costs.calibration.devices
        if device.memory_bytes is None or needed <= device.memory_bytes
    }


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A choice of ways, its costs, and the seconds of its step."""

    costs: Costs
    choice: Mapping[str, str]
    seconds: float


def _plan(
    graph: Graph,
    calibration: Calibration,
    candidate: _Candidate,
    singles: Mapping[str, float],
    reason: str,
) -> Plan:
    prediction = step.predict(candidate.costs, candidate.choice)
    cut = candidate.costs.cut
    allocation = {}
    splits = {}
    for call in graph.convolutions:
        name = candidate.choice[call.name]
        filters = filters_of(graph, call)
        if name == SAMPLES:
            allocation[call.name] = cut.shares
        elif name == FILTERS:
            allocation[call.name] = cut.counts[filters]
        else:
            rest = (0,) * (len(cut.devices) - 1)
            allocation[call.name] = (filters, *rest)
        splits[call.name] = SAMPLES if name == SAMPLES else FILTERS
    return Plan(
        allocation=allocation,
        splits=splits,
        devices=cut.devices,
        prediction=prediction,
        single_s=dict(singles),
        equal_s=None,
        reason=reason,
        fingerprint=work_keys.fingerprint(graph),
        memory_bytes=tuple(d.memory_bytes for d in calibration.devices),
        layer_bytes={name: (0, 0) for name in allocation},
    )


def _reason(candidate: _Candidate, singles: Mapping[str, float]) -> str:
    """Says in a line what was chosen, and what it gains."""
    prediction = step.predict(candidate.costs, candidate.choice)
    ways = list(candidate.choice.values())
    parts = [
        f"{ways.count(way)} by {way}"
        for way in (SAMPLES, FILTERS)
        if way in ways
    ]
    if CHIEF in ways:
        parts.append(f"{ways.count(CHIEF)} on the chief")
    cut = candidate.costs.cut
    shares = " : ".join(map(str, cut.shares))
    used = sum(n > 0 for n in cut.shares)
    most = max(prediction.received().values(), default=0)
    beside = "no device has the memory for it alone"
    if singles:
        name = min(singles, key=lambda d: singles[d])
        beside = (
            f"{singles[name] / candidate.seconds:.2f} times as fast as "
            f"{seconds_text(singles[name])} on {short(name)} alone"
        )
    calls = candidate.costs.graph.convolutions
    dense = sum(isinstance(call.layer, keras.layers.Dense) for call in calls)
    also = f" and {dense} dense layer{'s' * (dense > 1)}" if dense else ""
    return (
        f"{len(ways) - dense} convolutions{also} over {used} "
        f"device{'s' * (used > 1)}, "
        f"{', '.join(parts)} (shares {shares}): "
        f"{seconds_text(candidate.seconds)} a step, {beside}; "
        f"{most / 1e6:.1f} MB into each device."
    )
