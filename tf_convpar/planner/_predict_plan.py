"""Predicts the step of a given plan for a whole model."""

from __future__ import annotations

import dataclasses

import keras

from tf_convpar.planner import _plan
from tf_convpar.planner import balancing
from tf_convpar.planner import step
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._costs import Costs
from tf_convpar.planner.call_ways import FILTERS
from tf_convpar.planner.call_ways import SAMPLES
from tf_convpar.planner.call_ways import Cut
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.call_ways import filters_of
from tf_convpar.plans import Plan
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.units import seconds_text


def plan_of(
    model: keras.Model,
    calibration: Calibration,
    plan: Plan,
    wire_dtype: str | None = None,
    moments: str = "all",
) -> Plan:
    """A plan that somebody has made or edited, with its prediction.

    ```python
    edited = plans.load("plan.json")
    planner.plan_of(model, calibration, edited).prediction.step_s
    ```

    Args:
        model: Model that was measured, or one like it.
        calibration: Measurements of the model on the devices.
        plan: Plan of that model for these devices. All layers that are split
            by samples must have the same shares. All layers that are split by
            filters, and have as many of them, must have the same counts. Plans
            of `planner.plan` are like that.
        wire_dtype: Dtype in which tensors travel; None for their own.
        moments: As for `parallelize`.

    Returns:
        The plan, with a prediction by the function that `planner.plan`
        minimises.

    Raises:
        ValueError: The plan or the calibration is of another model; the plan
            is of other devices, or not uniform; its numbers do not sum up; or
            a device lacks the memory.
    """
    graph = calls_of(model)
    work_keys.check(graph, calibration.model)
    work_keys.check(graph, plan.fingerprint, "plan")
    names = tuple(device.name for device in calibration.devices)
    if plan.devices != names:
        raise ValueError(
            f"Expected a plan for the calibration's devices, "
            f"{', '.join(names)}. Received one for {', '.join(plan.devices)}."
        )
    cut = _cut(graph, calibration, plan, Settings(wire_dtype, moments))
    costs = Costs(graph, calibration, cut)
    choice = {call.name: plan.way(call.name) for call in graph.convolutions}
    for i, call in enumerate(graph.calls):
        possible = costs.ways.of[i]
        if call.splits and choice[call.name] not in possible:
            raise ValueError(
                f"Expected layer {call.name!r} to go one of the ways "
                f"{', '.join(possible)}. Received: {choice[call.name]}."
            )
    _check_memory(costs, choice)
    prediction = step.predict(costs, choice)
    singles = _plan.singles_of(costs)
    text = f"As given: {seconds_text(prediction.step_s)} a step"
    if singles:
        best = min(singles.values())
        text += (
            f", {best / prediction.step_s:.2f} times as fast as the best "
            f"single device with {seconds_text(best)}"
        )
    same = plan.prediction is not None and plan.prediction == prediction
    return dataclasses.replace(
        plan,
        prediction=prediction,
        single_s=singles,
        reason=plan.reason if same else f"{text}.",
        memory_bytes=tuple(d.memory_bytes for d in calibration.devices),
    )


def _cut(
    graph: Graph, calibration: Calibration, plan: Plan, settings: Settings
) -> Cut:
    """The cut of a plan: one for samples, one for each number of filters."""
    layers = {call.name: filters_of(graph, call) for call in graph.convolutions}
    if set(layers) != set(plan.allocation):
        missing = sorted(set(layers) - set(plan.allocation))
        unknown = sorted(set(plan.allocation) - set(layers))
        raise ValueError(
            f"Expected the layers {', '.join(layers)}. Received a plan "
            f"without {missing}, and with {unknown} besides."
        )
    unsplit = balancing.unsplit(graph, calibration, settings)
    shares, counts = unsplit.shares, dict(unsplit.counts)
    of_shares = ""
    of_counts: dict[int, str] = {}
    for name, filters in layers.items():
        numbers, way = plan.allocation[name], plan.way(name)
        by_samples = plan.splits.get(name) == SAMPLES
        wanted = calibration.batch if by_samples else filters
        if sum(numbers) != wanted:
            raise ValueError(
                f"Expected {wanted} {'samples' if by_samples else 'kernels'} "
                f"in layer {name!r}. Received: {list(numbers)}, which sum to "
                f"{sum(numbers)}."
            )
        if way == SAMPLES:
            _same("samples", name, numbers, of_shares, shares)
            shares, of_shares = numbers, name
        elif way == FILTERS:
            first = of_counts.get(filters, "")
            _same(f"{filters} kernels", name, numbers, first, counts[filters])
            counts[filters], of_counts[filters] = numbers, name
    return dataclasses.replace(unsplit, shares=shares, counts=counts)


def _same(
    what: str,
    layer: str,
    numbers: tuple[int, ...],
    first: str,
    known: tuple[int, ...],
) -> None:
    if first and numbers != known:
        raise ValueError(
            f"Expected all layers with {what} to be cut alike: feature maps "
            f"that are added must lie alike. Received: {list(known)} for "
            f"{first!r}, {list(numbers)} for {layer!r}. Change both."
        )


def _check_memory(costs: Costs, choice: step.Choice) -> None:
    for device, needed in zip(
        costs.calibration.devices,
        step.memory_bytes(costs, choice),
        strict=True,
    ):
        limit = device.memory_bytes
        if limit is not None and needed > limit:
            raise ValueError(
                f"Expected a plan that fits the memory of devices. Received "
                f"one for which {device.name} has {limit} bytes, and would "
                f"need {needed:.0f}. Give it less, or take smaller batches."
            )
