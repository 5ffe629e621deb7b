"""Replicas of groups of devices, each of which splits its model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tf_convpar.placement import copy_pairs
from tf_convpar.placement import sum_pairs
from tf_convpar.planner import _plan
from tf_convpar.planner import balancing
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._replica_times import WIDTH
from tf_convpar.planner._replica_times import weights_of
from tf_convpar.planner._tree_times import TreeTimes
from tf_convpar.planner._ways_to_train import GROUPS
from tf_convpar.planner._ways_to_train import OWN_STEPS
from tf_convpar.planner._ways_to_train import Way
from tf_convpar.planner.call_ways import Settings
from tf_convpar.plans import Plan
from tf_convpar.plans import Prediction
from tf_convpar.sharding import Graph


def groups(
    graph: Graph, calibration: Calibration, number: int, settings: Settings
) -> Way:
    """Predicts SyncEASGD of `number` groups, as equally fast as possible.

    For each exchange, shards of a group's weights travel to its first device
    and back. The centre is on the first device of the first group.

    Raises:
        ValueError: The devices of a group lack the memory, or there are fewer
            samples than groups.
    """
    if calibration.batch < number:
        raise ValueError(
            f"Expected a sample at least for each of {number} groups. "
            f"Received: {calibration.batch}."
        )
    parts = _alike(balancing.alone(graph, calibration), number)
    total = calibration.batch
    predictions = [
        _split(graph, calibration, part, max(1, total // number), settings)
        for part in parts
    ]
    # Faster groups get larger batches, as `shares="auto"` gives them.
    batches = balancing.balanced(
        total - number,
        [
            (lambda n, s=group.step_s: n * s)  # type: ignore[misc]
            for group, _ in predictions
        ],
    )
    batches = tuple(1 + n for n in batches)
    predictions = [
        _split(graph, calibration, part, n, settings)
        for part, n in zip(parts, batches, strict=True)
    ]
    names = [part[0] for part in parts]
    tree = TreeTimes(calibration.links, WIDTH * sum(weights_of(graph.calls)))
    gathered = max(
        away / _rate_within(calibration, part) if away else 0.0
        for part, (_, away) in zip(parts, predictions, strict=True)
    )
    exchange = gathered + max(
        tree.seconds(sum_pairs(names, names[0])),
        tree.seconds(copy_pairs(names, names[0])),
    )
    most = [
        max(prediction.received().values(), default=0) + away
        for prediction, away in predictions
    ]
    return Way(
        GROUPS,
        "SyncEASGD",
        tuple(map(tuple, parts)),
        batches,
        max(exchange, *(group.step_s for group, _ in predictions)) + gathered,
        tree.received(names, names[0]) + max(most),
        OWN_STEPS,
    )


def _rate_within(calibration: Calibration, part: Sequence[str]) -> float:
    """Bytes a second into a group's first device from its others."""
    first, *others = part
    return max(
        link.bytes_per_s
        for link in calibration.links
        if link.target == first and link.source in others
    )


def _split(
    graph: Graph,
    calibration: Calibration,
    names: Sequence[str],
    batch: int,
    settings: Settings,
) -> tuple[Prediction, int]:
    """The step of a group, and bytes of weights that its first device lacks.

    Raises:
        ValueError: The devices lack the memory.
    """
    group = dataclasses.replace(calibration.among(names), batch=batch)
    plan = _plan.plan_graph(graph, group, settings)
    if plan.prediction is None:
        raise ValueError(plan.reason)
    return plan.prediction, WIDTH * _stored_away(graph, plan)


def _alike(seconds: dict[str, float], number: int) -> list[list[str]]:
    """Devices in groups whose speeds add up to about the same."""
    parts: list[list[str]] = [[] for _ in range(number)]
    speeds = [0.0] * number
    for name in sorted(seconds, key=lambda name: seconds[name]):
        slowest = min(range(number), key=speeds.__getitem__)
        parts[slowest].append(name)
        speeds[slowest] += 1 / seconds[name]
    return parts


def _stored_away(graph: Graph, plan: Plan) -> int:
    """Weights that the first device does not store."""
    return sum(
        math.prod(call.layer.kernel.shape)
        * sum(plan.allocation[call.name][1:])
        // sum(plan.allocation[call.name])
        for call in graph.convolutions
        if hasattr(call.layer, "kernel")
    )
