"""Compares ways to train: alone, split, replicas, or groups.

A step of replicas is predicted from the same measurements as that of a split
model, and from the messages that `placement` says are sent. All ways have the
same samples in a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.planner import _plan
from tf_convpar.planner import balancing
from tf_convpar.planner import work_keys
from tf_convpar.planner._arrival_ways import arrivals
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._costs import Costs
from tf_convpar.planner._group_ways import groups
from tf_convpar.planner._replica_times import ReplicaTimes
from tf_convpar.planner._replica_ways import diloco
from tf_convpar.planner._replica_ways import normalizes
from tf_convpar.planner._replica_ways import sync_easgd
from tf_convpar.planner._replica_ways import sync_sgd
from tf_convpar.planner._ways_to_train import ALONE
from tf_convpar.planner._ways_to_train import GROUPS
from tf_convpar.planner._ways_to_train import METHODS
from tf_convpar.planner._ways_to_train import NUMBERS
from tf_convpar.planner._ways_to_train import ONE_DEVICE
from tf_convpar.planner._ways_to_train import OWN_MOMENTS
from tf_convpar.planner._ways_to_train import OWN_STEPS
from tf_convpar.planner._ways_to_train import SPLIT
from tf_convpar.planner._ways_to_train import Arguments
from tf_convpar.planner._ways_to_train import Way
from tf_convpar.planner._ways_to_train import check_names
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.linear_program import NoProof
from tf_convpar.plans import Plan
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.units import seconds_text
from tf_convpar.units import three_digits

_NUMBERS_OF_GROUPS = (2, 3, 4, 8, 16)


def compare(
    model: keras.Model,
    calibration: Calibration,
    wire_dtype: str | None = None,
    plan: Plan | None = None,
    moments: str = "all",
    ways: Sequence[str] | None = None,
    **methods: Any,
) -> tuple[Way, ...]:
    """Ways to train a model, those that learn from most samples a second first.

    ```python
    calibration = convpar.calibrate(model, strategy, batch_size=32)
    for way in convpar.compare(model, calibration, every=100, wire="int8"):
        print(way.label, way.samples_per_s, way.numbers)
    ```

    All ways have the calibration's batch in a step, of all replicas together.

    Args:
        model: Model that was measured.
        calibration: Measurements of the model on the devices.
        wire_dtype: Dtype in which tensors travel in split models; None for
            their own.
        plan: What `plan` returned for them; None to plan.
        moments: As for `parallelize`, in split models.
        ways: Which ways: `"alone"`, `"split"`, names of methods of
            `convpar.replicas`, `"groups"`; None for all that are predicted.
        **methods: `every`, `fragments` and `wire` as for `DiLoCo`, which is
            the `wire` of `SyncSGD` too, `n_push` and `n_fetch` as for
            `DownpourSGD`; their defaults are those.

    Returns:
        The fastest device alone; the model split over all of them; a replica
        on each, for each method; and, of three devices or more, replicas of
        groups of devices as equal as can be.

    Raises:
        ValueError: The calibration is of another model, a way is unknown, or
            an argument is out of its range.
        RuntimeError: A plan has no proof within half a minute.
    """
    graph = calls_of(model)
    work_keys.check(graph, calibration.model)
    settings = Settings(wire_dtype, moments)
    names, arguments = check_names(ways), Arguments(**methods)
    return ways_of(graph, calibration, settings, names, arguments, plan)


def ways_of(
    graph: Graph,
    calibration: Calibration,
    settings: Settings,
    names: Sequence[str],
    arguments: Arguments,
    plan: Plan | None = None,
) -> tuple[Way, ...]:
    """The ways for a graph that has been read; see `compare`."""
    ways = []
    batch = calibration.batch
    unsplit = balancing.unsplit(graph, calibration)
    single = _plan.singles_of(Costs(graph, calibration, unsplit))
    if ALONE in names and single:
        device = min(single, key=lambda name: single[name])
        seconds = single[device]
        alone = ((device,),)
        ways.append(Way(ALONE, None, alone, (batch,), seconds, 0, ONE_DEVICE))
    if SPLIT in names:
        plan = plan or _plan.plan_graph(graph, calibration, settings)
        ways += _split(graph, plan, batch, settings)
    # Each replica needs a sample, and the memory for its part of the batch.
    part = dataclasses.replace(
        calibration, batch=-(-batch // len(calibration.devices))
    )
    unsplit = balancing.unsplit(graph, part)
    able = list(_plan.singles_of(Costs(graph, part, unsplit)))
    if 1 < len(able) <= batch:
        replicas = ReplicaTimes(graph, calibration, able)
        predictors = {
            "SyncSGD": lambda: sync_sgd(replicas, graph, arguments),
            "SyncEASGD": lambda: sync_easgd(replicas),
            "DiLoCo": lambda: diloco(replicas, arguments),
        }
        for name in METHODS:
            if name in names:
                predictor = predictors.get(name)
                ways.append(
                    predictor()
                    if predictor
                    else arrivals(replicas, name, arguments)
                )
    for number in _NUMBERS_OF_GROUPS if GROUPS in names else ():
        if number >= len(calibration.devices):
            break
        with contextlib.suppress(ValueError, NoProof):
            ways.append(groups(graph, calibration, number, settings))
    return tuple(sorted(ways, key=lambda way: -way.samples_per_s))


def replicas_ahead(
    graph: Graph,
    calibration: Calibration,
    settings: Settings,
    longer: float,
    step_s: float,
) -> str:
    """Says which replicas are predicted to be ahead of a plan, and by how much.

    Those that make one step together come before those that step by themselves.

    Args:
        graph: Graph that was planned.
        calibration: Measurements of it.
        settings: Those of the plan.
        longer: How many times as long as predicted a step of one device took,
            by which predictions are corrected.
        step_s: Measured seconds of a step with the plan.

    Returns:
        A sentence; "" if they are not ahead by `WORTH`.
    """
    methods = {"SyncSGD": "", "DiLoCo": ", which step by themselves,"}
    arguments = Arguments(wire="int8")
    ways = ways_of(graph, calibration, settings, list(methods), arguments)
    seconds = {way.name: longer * way.step_s for way in ways}
    for name, what in methods.items():
        replicas_s = seconds.get(name, math.inf)
        if replicas_s <= (1 - _plan.WORTH) * step_s:
            return (
                f" Replicas{what} are predicted to take "
                f"{seconds_text(replicas_s)} for as many samples: "
                f'convpar.replicas.{name}(model, wire="int8").'
            )
    return ""


def _split(
    graph: Graph, plan: Plan, batch: int, settings: Settings
) -> list[Way]:
    """The way of a plan, if it splits anything."""
    if plan.prediction is None or len(plan.used) < 2:
        return []
    most = max(plan.prediction.received().values(), default=0)
    own_moments = settings.moments != "all" and normalizes(graph)
    return [
        Way(
            SPLIT,
            None,
            (tuple(plan.used),),
            (batch,),
            plan.prediction.step_s,
            most,
            OWN_MOMENTS if own_moments else ONE_DEVICE,
        )
    ]


def advice(ways: Sequence[Way]) -> str:
    """Says which way is the fastest, for each value of `Way.numbers`.

    Args:
        ways: Ways of one cluster, the fastest first.
    """
    lines = []
    known = None
    for numbers, words in (
        (ONE_DEVICE, "With the numbers of one device,"),
        (OWN_MOMENTS, "With batch normalization by each device's own samples,"),
        (OWN_STEPS, "With replicas that step from weights of their own,"),
    ):
        way = next((way for way in ways if way.numbers == numbers), None)
        if way is None or (
            known is not None and way.samples_per_s <= known.samples_per_s
        ):
            continue
        line = (
            f"{words} {way.label} is the fastest: {seconds_text(way.step_s)} a "
            f"step, {three_digits(way.samples_per_s)} samples a second"
        )
        if known is not None:
            times = way.samples_per_s / known.samples_per_s
            line += f", {times:.2f} times as many"
        if numbers == OWN_STEPS:
            line += ", of which each may teach less"
        lines.append(f"{line}.")
        known = way
    return " ".join(lines)


def legend(ways: Sequence[Way]) -> str:
    """Explains the values of `Way.numbers` that these ways have."""
    return "\n".join(
        f"{numbers}: {meaning}."
        for numbers, meaning in NUMBERS.items()
        if any(way.numbers == numbers for way in ways)
    )
