"""Plans a whole model: each convolution on the chief, by filters or samples."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

import keras

from tf_convpar.planner import _choose
from tf_convpar.planner import _cuts
from tf_convpar.planner import _graph
from tf_convpar.planner import _step
from tf_convpar.planner import _works
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._costs import Costs
from tf_convpar.planner._graph import Graph
from tf_convpar.planner._program import NoSolution
from tf_convpar.planner._ways import CHIEF
from tf_convpar.planner._ways import FILTERS
from tf_convpar.planner._ways import SAMPLES
from tf_convpar.planner._ways import filters_of
from tf_convpar.plans import Plan
from tf_convpar.plans import Prediction
from tf_convpar.plans._words import seconds_text
from tf_convpar.plans._words import short

# What is split must be predicted to be faster by this: predictions err by as
# much in the worst of the measured cases (`benchmarks/cluster`), and a
# model that is not split has no cluster to fail.
_WORTH = 0.1


def plan(
    model: keras.Model, calibration: Calibration, wire_dtype: str | None = None
) -> Plan:
    """The plan with the shortest step that these measurements allow.

    ```python
    calibration = planner.calibrate(model, strategy, batch_size=32)
    plan = planner.plan(model, calibration)
    model = convpar.parallelize(model, plan)
    ```

    Args:
        model: The one that was measured, or one like it.
        calibration: What was measured.
        wire_dtype: The dtype in which to travel.

    Returns:
        The plan; with every convolution on one device where that is fastest.

    Raises:
        ValueError: The calibration is of another model.
        RuntimeError: There is no proof within half a minute.
    """
    graph = _graph.of_model(model)
    expected = _works.fingerprint(graph)
    if calibration.model != expected:
        raise ValueError(
            f"Expected a calibration of '{model.name}', fingerprint "
            f"{expected}. Received one of another model, {calibration.model}: "
            "calibrate again."
        )
    return plan_graph(graph, calibration, wire_dtype)


def plan_graph(
    graph: Graph, calibration: Calibration, wire_dtype: str | None = None
) -> Plan:
    """As `plan`, for a graph that has been read."""
    found: list[_Found] = []
    singles: dict[str, float] = {}
    for cut in _cuts.cuts(graph, calibration, wire_dtype):
        costs = Costs(graph, calibration, cut)
        singles = singles or singles_of(costs)
        with contextlib.suppress(NoSolution):
            # Most cuts are worse than the best, which is soon proven.
            known = min((f.seconds for f in found), default=None)
            choice = _choose.choose(costs, below=known)
            found.append(_Found(costs, choice, _step.step_s(costs, choice)))
    if not found:
        limits = {d.name: d.memory_bytes for d in calibration.devices}
        raise ValueError(
            "Expected devices with the memory for a training step of "
            f"'{graph.name}' at batch {calibration.batch}. Received "
            f"{limits} bytes, in which no split fits. Take smaller batches "
            "or more devices."
        )
    best = split = min(found, key=lambda f: f.seconds)
    alone = singles.get(calibration.devices[0].name)
    if alone is not None and best.seconds > (1 - _WORTH) * alone:
        choice = dict.fromkeys(best.choice, CHIEF)
        # Nobody waits for anybody there.
        cut = _cuts.whole(graph, calibration, wire_dtype)
        best = _Found(Costs(graph, calibration, cut), choice, alone)
    return _plan(graph, calibration, best, split, singles)


def singles_of(costs: Costs) -> dict[str, float]:
    """Seconds of a step on each device alone that has the memory."""
    needed = sum(
        cost[CHIEF].memory[0] for cost in costs.of if cost[CHIEF].memory
    )
    seconds = _cuts.alone(costs.graph, costs.calibration)
    return {
        device.name: seconds[device.name]
        for device in costs.calibration.devices
        if device.memory_bytes is None or needed <= device.memory_bytes
    }


@dataclasses.dataclass(frozen=True)
class _Found:
    """A choice, and what it takes."""

    costs: Costs
    choice: Mapping[str, str]
    seconds: float


def _plan(
    graph: Graph,
    calibration: Calibration,
    found: _Found,
    split: _Found,
    singles: Mapping[str, float],
) -> Plan:
    prediction = _step.predict(found.costs, found.choice)
    cut = found.costs.cut
    allocation = {}
    splits = {}
    for call in graph.convolutions:
        name = found.choice[call.name]
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
        reason=_reason(found, split, singles, prediction),
        fingerprint=_works.fingerprint(graph),
        memory_bytes=tuple(d.memory_bytes for d in calibration.devices),
        layer_bytes={name: (0, 0) for name in allocation},
    )


def _reason(
    found: _Found,
    split: _Found,
    singles: Mapping[str, float],
    prediction: Prediction,
) -> str:
    """What was chosen, and what comes of it, in a line."""
    ways = list(found.choice.values())
    if set(ways) == {CHIEF}:
        text = f"Not split: {seconds_text(found.seconds)} a step"
        if set(split.choice.values()) != {CHIEF}:
            text += f", and {seconds_text(split.seconds)} with the best split"
        return f"{text}."
    parts = [
        f"{ways.count(way)} by {way}"
        for way in (SAMPLES, FILTERS)
        if way in ways
    ]
    if CHIEF in ways:
        parts.append(f"{ways.count(CHIEF)} on the chief")
    cut = found.costs.cut
    shares = " : ".join(map(str, cut.shares))
    used = sum(n > 0 for n in cut.shares)
    most = max(prediction.received().values(), default=0)
    beside = "no device has the memory for it alone"
    if singles:
        name = min(singles, key=lambda d: singles[d])
        beside = (
            f"{singles[name] / found.seconds:.2f} times as fast as "
            f"{seconds_text(singles[name])} on {short(name)} alone"
        )
    return (
        f"{len(ways)} convolutions over {used} device{'s' * (used > 1)}, "
        f"{', '.join(parts)} (shares {shares}): "
        f"{seconds_text(found.seconds)} a step, {beside}; "
        f"{most / 1e6:.1f} MB into each device."
    )
