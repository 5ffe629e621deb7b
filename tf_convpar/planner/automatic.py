"""`plan="auto"`: measures and plans layers or whole models for a strategy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tf_convpar import plans
from tf_convpar._compat.keras import print_msg
from tf_convpar.planner import _graph
from tf_convpar.planner import _plan
from tf_convpar.planner import _plan_of
from tf_convpar.planner import _works
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration_file import to_json
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import _kept
from tf_convpar.planner.measure import progress
from tf_convpar.planner.star.measure import LayerByLayer
from tf_convpar.plans import Plan
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import plans_layers

# Samples of a step, where a model is built for any batch.
ASSUMED_BATCH = 32


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
        self._known: dict[str, _Known] = {}

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
    ) -> Plan:
        """Plans a whole model.

        Args:
            model: Sequential or functional model, built.
            batch_size: Samples of a step. None for the batch that the model
                was built for, or 32 if it was built for any.
            wire_dtype: Dtype in which tensors travel; None for the
                strategy's.
            algorithm: Algorithm of all convolutions; None for their own.

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
            found = _calibrate.calibrate(
                model,
                self._strategy,
                batch,
                algorithm=algorithm,
                report=report,
            )
        wire = wire_dtype or self._strategy.wire_dtype
        plan = _kept_plan(model, found, wire)
        self._known[found.model] = _Known(found, wire, plan, algorithm)
        return plan

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
        try:
            return _kept_plan(model, calibration, known.wire_dtype)
        except (ValueError, RuntimeError):
            return None  # No memory for it, say.

    def _measured_again(self, model: Any, known: _Known) -> _Known:
        """With all of the strategy's devices, some of which are new."""
        found = _calibrate.calibrate(
            model,
            self._strategy,
            known.calibration.batch,
            algorithm=known.algorithm,
        )
        self._known[found.model] = dataclasses.replace(known, calibration=found)
        return self._known[found.model]

    def has_now(self, model: Any, plan: Plan) -> None:
        """Notes with which plan a model goes on that was planned."""
        known = self._of(model)
        if known is not None:
            self._known[known.calibration.model] = dataclasses.replace(
                known, plan=plan
            )

    def plan_now(self, model: Any) -> Plan | None:
        """The last plan of a model that was planned; None if it was not."""
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
        now = _plan_of.plan_of(
            model,
            known.calibration.among(devices, slower),
            known.plan,
            known.wire_dtype,
        )
        if now.prediction is None:
            return None
        return 1 - new.prediction.step_s / now.prediction.step_s

    def _of(self, model: Any) -> _Known | None:
        if not self._known:
            return None
        try:
            graph = _graph.of_model(model)
        except ValueError:
            return None  # Without a graph, it was not planned.
        return self._known.get(_works.fingerprint(graph))


@dataclasses.dataclass(frozen=True)
class _Known:
    """How a model was measured, and the last plan that was made of that."""

    calibration: Calibration
    wire_dtype: str | None
    plan: Plan
    algorithm: str | None


def _kept_plan(
    model: Any, calibration: Calibration, wire_dtype: str | None
) -> Plan:
    """Plans a model, unless that has been done with these measurements.

    The proof takes seconds for a model of many convolutions.
    """
    graph = _graph.of_model(model)
    file = _kept.path(
        f"{model.name}-{calibration.batch}",
        (
            # In memory there are tuples, and lists in what a file has given.
            json.dumps(to_json(calibration)),
            wire_dtype,
            graph.tensors,
            [(c.before, c.splits, c.leads_to) for c in graph.calls],
            [call.name for call in graph.convolutions],
        ),
        "plans",
    )
    plan = _kept.find(file, plans.load)
    if plan is None:
        plan = _plan.plan(model, calibration, wire_dtype)
        _kept.keep(plan, file, Plan.save)
    return plan
