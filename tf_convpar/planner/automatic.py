"""`plan="auto"`: measures and plans layers or whole models for a strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tf_convpar import plans
from tf_convpar.planner import _graph
from tf_convpar.planner import _plan
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration_file import to_json
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import _kept
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
        found = _calibrate.calibrate(
            model, self._strategy, batch, algorithm=algorithm
        )
        wire = wire_dtype or self._strategy.wire_dtype
        return _kept_plan(model, found, wire)


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
