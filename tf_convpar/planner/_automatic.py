"""`plan="auto"`: what a strategy asks for, of layers and of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_convpar.planner import _plan
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.star.measure import Automatic as LayerByLayer
from tf_convpar.plans import Plan
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.strategy.strategy import plans_layers

# Where a model is built for any batch.
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
        """Kernels per device for a layer that is built outside of a model."""
        return self._layers.counts(layer, input_shape)

    def model(
        self,
        model: Any,
        batch_size: int | None = None,
        wire_dtype: str | None = None,
        algorithm: str | None = None,
    ) -> Plan:
        """The plan of a whole model.

        Args:
            model: Sequential or functional, built.
            batch_size: Samples of a step; None for the batch that the model
                was built for, else 32.
            wire_dtype: The dtype in which to travel, None for the strategy's.
            algorithm: Of all convolutions, None for their own.

        Raises:
            ValueError: The model has no graph, or inputs of unknown size.
        """
        inputs = getattr(model, "inputs", None)
        batch = batch_size or (inputs and inputs[0].shape[0]) or ASSUMED_BATCH
        found = _calibrate.calibrate(
            model, self._strategy, batch, algorithm=algorithm
        )
        wire = wire_dtype or self._strategy.wire_dtype
        return _plan.plan(model, found, wire)
