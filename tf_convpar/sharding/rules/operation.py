"""Operations of `keras.ops` between layers, as in `x + shortcut`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar._compat.keras import operations
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import on_shards
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import each_alone
from tf_convpar.sharding.rules.merging import Elementwise

# Whose result has one axis more.
_WIDEN = operations("ExpandDims")


class Operation(Elementwise):
    """Operations on each number alone, or on numbers at the same place.

    Beside feature maps, `layer` (an operation) may be given numbers, as in
    `x / 6`. If it is given arrays, its inputs are joined (`Regions`).
    """

    layers = operations(
        *("Add", "Subtract", "Multiply", "TrueDivide", "Maximum", "Minimum"),
        *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Gelu", "Sigmoid"),
        *("Silu", "HardSigmoid", "HardSilu", "Softplus", "Tanh", "Clip"),
        *("Square", "Absolute"),
    )

    def call(
        self,
        layer: Any,
        inputs: Sequence[ShardedTensor],
        args: Sequence[Any] = (),
        **kwargs: Any,
    ) -> ShardedTensor:
        """Runs the operation on each device; numbers keep their places."""

        def run(*shards: Any) -> Any:
            remaining = iter(shards)
            operands = [
                next(remaining) if isinstance(x, ShardedTensor) else x
                for x in args
            ]
            return type(layer).call(layer, *operands, **kwargs)

        return on_shards(run, inputs[0].layout, *(x.shards for x in inputs))


class OperationOnSamples(SampleRule):
    """The operations of `Operation` on samples, and some that have an axis."""

    layers = (
        *Operation.layers,
        *operations("Softmax", "LogSoftmax", "Concatenate", "Mean", "Sum"),
        *operations("Max", "Min", "ExpandDims"),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Whether no axis of the operation is that of samples."""
        if type(layer) in Operation.layers:
            # The first axis of a tensor of lower rank would meet another than
            # that of samples.
            return len({len(shape) for shape in shapes}) == 1
        rank = len(shapes[0]) + isinstance(layer, _WIDEN)
        # Keras may have made a list of an axis.
        axes = keras.tree.flatten(layer.axis)
        return all(axis is not None and axis % rank for axis in axes)

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """Runs the operation on each device, on the samples there."""
        return each_alone(layer, layout, args, kwargs)
