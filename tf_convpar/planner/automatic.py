"""`plan="auto"`: measures and plans layers or whole models for a strategy."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar import plans
from tf_convpar._compat.keras import print_msg
from tf_convpar.algorithms import ASSUMED_BATCH
from tf_convpar.machines import short
from tf_convpar.planner import _plan
from tf_convpar.planner import _predict_plan
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import to_json
from tf_convpar.planner._compare import replicas_ahead
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import cache
from tf_convpar.planner.measure import progress
from tf_convpar.planner.measure import step_seconds
from tf_convpar.planner.star._by_layer import LayerByLayer
from tf_convpar.plans import Plan
from tf_convpar.sharding import calls_of
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import plans_layers
from tf_convpar.units import seconds_text

# Steps of a split model must be ahead of the chief's alone by half of what has
# to be predicted: measurements err by less than predictions.
_AHEAD = _plan.WORTH / 2
# Predictions of steps, of one device and of several, err by up to a fifth: a
# split by samples that is predicted to be so much longer may be ahead.
_DOUBT = 0.2


@plans_layers
class Automatic:
    """Measures and plans, for one strategy.

    ```python
    Automatic(strategy).model(model, batch_size=32)["conv2d"]
    ```
    """

    def __init__(self, strategy: ConvParallelStrategy) -> None:
        self._strategy = strategy
        self._layers = LayerByLayer(strategy)
        # By the fingerprints of models.
        self._known: dict[str, _PlannedModel] = {}

    def devices_changed(self) -> None:
        """Layers are planned for other devices; models are known as before."""
        self._layers = LayerByLayer(self._strategy)

    def counts(
        self, layer: Any, input_shape: Sequence[int | None]
    ) -> tuple[int, ...] | None:
        """Kernels per device for a layer that is built outside of a model.

        None stands for equal shares.
        """
        return self._layers.counts(layer, input_shape)

    def model(
        self,
        model: Any,
        batch_size: int | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
        moments: str = "all",
    ) -> Plan:
        """Plans a whole model, and times its steps before it is split.

        Steps are timed with the plan and on the chief alone. Where the plan is
        not ahead, nothing is split.

        Args:
            model: Sequential or functional model, built.
            batch_size: Samples of a step. None for the batch that the model
                was built for, or 32 if it was built for any.
            wire_dtype: Dtype in which tensors travel; None for the
                strategy's.
            algorithm: Algorithm of all convolutions; None for their own.
            moments: As for `parallelize`.

        Raises:
            ValueError: The model has no graph, or inputs of unknown size.
        """
        inputs = getattr(model, "inputs", None)
        batch = batch_size or (inputs and inputs[0].shape[0]) or ASSUMED_BATCH
        devices = len(self._strategy.devices)
        doing = (
            f"{model.name}: measuring its layers on {devices} devices, which "
            "takes up to a minute the first time"
        )
        with progress(doing, print_msg) as report:
            calibration = _calibrate.calibrate(
                model,
                self._strategy,
                batch,
                algorithm=algorithm,
                report=report,
            )
            settings = Settings(
                wire_dtype or self._strategy.wire_dtype, moments
            )
            # Any split that is predicted to be ahead is tried: the clock errs
            # by less than a prediction.
            plan = _kept_plan(model, calibration, settings, worth=0.0)
            known = _PlannedModel(calibration, settings, plan, algorithm)
            chief = calibration.devices[0].name
            if chief in plan.single_s:
                known = _by_the_clock(model, self._strategy, known, report)
        self._known[calibration.model] = known
        return known.plan

    def again(
        self,
        model: Any,
        devices: Sequence[str],
        slower: Mapping[str, float] | None = None,
    ) -> Plan | None:
        """Plans a model that was planned, by the same measurements.

        All devices are measured if there are new ones.

        Args:
            model: As it was planned, or a parallel one like it.
            devices: Devices that there are now, the chief's first.
            slower: How many times slower than measured devices are now.

        Returns:
            The plan; None if the model was not planned, or there is none for
            these devices.
        """
        known = self._of(model)
        if known is None or len(devices) < 2:
            return None
        measured = {device.name for device in known.calibration.devices}
        if not measured.issuperset(devices):
            known = self._measured_again(model, known)
        calibration = known.calibration.among(devices, slower)
        plan = None
        if known.by_samples:
            plan = _plan.by_samples(model, calibration, known.settings)
        try:
            plan = plan or _kept_plan(model, calibration, known.settings)
        except (ValueError, RuntimeError):
            return None  # No memory for it, say.
        alone = plan.single_s.get(devices[0])
        if alone is None or known.seconds(plan) <= (1 - _AHEAD) * alone:
            return plan
        reason = (
            f"Not split: {seconds_text(alone)} a step on {short(devices[0])} "
            "alone, and splits took longer than predicted when this was tried."
        )
        return _plan.unsplit_plan(model, calibration, known.settings, reason)

    def _measured_again(
        self, model: Any, known: _PlannedModel
    ) -> _PlannedModel:
        """Measures all of the strategy's devices, some of which are new."""
        calibration = _calibrate.calibrate(
            model,
            self._strategy,
            known.calibration.batch,
            algorithm=known.algorithm,
        )
        self._known[calibration.model] = dataclasses.replace(
            known, calibration=calibration
        )
        return self._known[calibration.model]

    def has_now(self, model: Any, plan: Plan) -> None:
        """Notes the plan with which a planned model goes on."""
        known = self._of(model)
        if known is not None:
            self._known[known.calibration.model] = dataclasses.replace(
                known, plan=plan
            )

    def plan_now(self, model: Any) -> Plan | None:
        """The last plan of a model; None if it was not planned."""
        known = self._of(model)
        return None if known is None else known.plan

    def saves(self, model: Any, slower: Mapping[str, float]) -> float | None:
        """Part of the step that planning again is predicted to save.

        Args:
            model: A parallel model that was planned.
            slower: How many times slower than measured devices are now.

        Returns:
            Part of the step with its plan of now; None if there is no plan.
        """
        known = self._of(model)
        if known is None:
            return None
        devices = known.plan.devices
        new = self.again(model, devices, slower)
        if new is None or new.prediction is None:
            return None
        now = _predict_plan.plan_of(
            model,
            known.calibration.among(devices, slower),
            known.plan,
            **vars(known.settings),
        )
        if now.prediction is None:
            return None
        return 1 - known.seconds(new) / known.seconds(now)

    def _of(self, model: Any) -> _PlannedModel | None:
        if not self._known:
            return None
        try:
            graph = calls_of(model)
        except ValueError:
            return None  # Without a graph, it was not planned.
        return self._known.get(work_keys.fingerprint(graph))


@dataclasses.dataclass(frozen=True)
class _PlannedModel:
    """A model's calibration and settings, and the last plan made from them."""

    calibration: Calibration
    settings: Settings
    plan: Plan
    algorithm: str | None
    # How many times as long as predicted a split step took, beside one on the
    # chief alone.
    longer: float = 1.0
    # Whether the split that was shortest by the clock is one by samples only,
    # though another one was predicted to be shorter.
    by_samples: bool = False

    def seconds(self, plan: Plan) -> float:
        """Predicted seconds of a step, corrected by how long splits took."""
        if plan.prediction is None:
            return math.inf
        split = plan.used != plan.devices[:1]
        return plan.prediction.step_s * (self.longer if split else 1.0)


# How the splits that are timed are named in a plan's reason.
_BEST, _BY_SAMPLES = "with the best plan", "by samples only"


def _by_the_clock(
    model: Any,
    strategy: ConvParallelStrategy,
    known: _PlannedModel,
    report: Callable[[str], None],
) -> _PlannedModel:
    """Times the plan, a plan by samples only, and no split; takes the fastest.

    A plan that splits a few layers otherwise moves feature maps and fuses less,
    which costs more than is predicted.
    """
    calibration, settings = known.calibration, known.settings
    chief = calibration.devices[0].name
    alone = known.plan.single_s[chief]
    tried = _to_be_timed(model, known)
    unsplit = _plan.unsplit_plan(model, calibration, settings, "Not split.")
    *splits_s, alone_s = step_seconds(
        model,
        strategy,
        [*tried.values(), unsplit],
        calibration,
        report=report,
        algorithm=known.algorithm,
        **vars(settings),
    )
    if math.isinf(alone_s):
        return known  # No memory for the whole of it.
    said = _in_words(known, tried, splits_s, alone_s)
    step_s, plan = alone_s, known.plan
    if tried:
        split_s, how = min(zip(splits_s, tried, strict=True))
        split = tried[how]
        known = dataclasses.replace(
            known,
            longer=(split_s / known.seconds(split)) / (alone_s / alone),
            by_samples=how == _BY_SAMPLES,
        )
        if split_s <= (1 - _AHEAD) * alone_s:
            step_s, plan = split_s, split
        elif _BEST in tried:
            plan = unsplit
    said += replicas_ahead(
        calls_of(model), calibration, settings, alone_s / alone, step_s
    )
    plan = dataclasses.replace(
        plan,
        reason=f"{plan.reason} {said}",
        prediction=plan.prediction and plan.prediction.taking(step_s),
        single_s={**plan.single_s, chief: alone_s},
    )
    return dataclasses.replace(known, plan=plan)


def _to_be_timed(model: Any, known: _PlannedModel) -> dict[str, Plan]:
    """The splits of which one may be faster than the chief alone."""
    chief = known.calibration.devices[0].name
    tried = {} if known.plan.used == (chief,) else {_BEST: known.plan}
    simple = _plan.by_samples(model, known.calibration, known.settings)
    longest = (1 + _DOUBT) * known.plan.single_s[chief]
    if (
        simple is not None
        and dict(simple) != dict(known.plan)
        and known.seconds(simple) < longest
    ):
        tried[_BY_SAMPLES] = simple
    return tried


def _in_words(
    known: _PlannedModel,
    tried: Mapping[str, Plan],
    splits_s: Sequence[float],
    alone_s: float,
) -> str:
    """What was measured, beside what was predicted."""
    measured = [
        f"{'too little memory' if math.isinf(s) else seconds_text(s)} {how} "
        f"({seconds_text(known.seconds(plan))} predicted)"
        for (how, plan), s in zip(tried.items(), splits_s, strict=True)
    ]
    chief = short(known.calibration.devices[0].name)
    measured.append(f"{seconds_text(alone_s)} on {chief} alone")
    return f"Measured: {'; '.join(measured)}."


def _kept_plan(
    model: Any,
    calibration: Calibration,
    settings: Settings,
    worth: float = _plan.WORTH,
) -> Plan:
    """Plans a model, unless that has been done with these measurements.

    The proof takes seconds for a model of many convolutions.
    """
    graph = calls_of(model)
    file = cache.path(
        f"{model.name}-{calibration.batch}",
        (
            # In memory there are tuples, and lists in what a file has given.
            json.dumps(to_json(calibration)),
            (settings, worth),
            graph.tensors,
            [(c.before, c.splits, c.leads_to) for c in graph.calls],
            [call.name for call in graph.convolutions],
        ),
        "plans",
    )
    plan = cache.find(file, plans.load)
    if plan is None:
        plan = _plan.plan_graph(graph, calibration, settings, worth)
        cache.keep(plan, file, Plan.save)
    return plan
