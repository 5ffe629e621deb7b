"""Operations of `keras.ops` between layers, as in `x + shortcut`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras.src.ops import nn
from keras.src.ops import numpy

from tf_convpar.placement import SampleLayout
from tf_convpar.placement import ShardedTensor
from tf_convpar.sharding.rules._rule import on_shards
from tf_convpar.sharding.rules.each_sample import SampleRule
from tf_convpar.sharding.rules.each_sample import each_alone
from tf_convpar.sharding.rules.merging import Elementwise


class Operation(Elementwise):
    """What is done to each number alone, or to numbers side by side.

    Beside feature maps, `layer` (an operation) may be given numbers, as in
    `x / 6`; with arrays it joins (`Regions`).
    """

    layers = (
        *(numpy.Add, numpy.Subtract, numpy.Multiply),
        *(numpy.TrueDivide, numpy.Maximum, numpy.Minimum),
        *(nn.Relu, nn.Relu6, nn.LeakyRelu, nn.Elu, nn.Selu, nn.Gelu),
        *(nn.Sigmoid, nn.Silu, nn.HardSigmoid, nn.HardSilu, nn.Softplus),
        *(numpy.Tanh, numpy.Clip, numpy.Square, numpy.Absolute),
    )

    def call(
        self,
        layer: Any,
        inputs: Sequence[ShardedTensor],
        args: Sequence[Any] = (),
        **kwargs: Any,
    ) -> ShardedTensor:
        """The operation on each device, numbers among `args` in their place."""

        def run(*shards: Any) -> Any:
            left = iter(shards)
            own = [
                next(left) if isinstance(x, ShardedTensor) else x for x in args
            ]
            return type(layer).call(layer, *own, **kwargs)

        return on_shards(run, inputs[0].layout, *(x.shards for x in inputs))


class OperationOnSamples(SampleRule):
    """The same, and what works along axes, on samples."""

    layers = (
        *Operation.layers,
        *(nn.Softmax, nn.LogSoftmax, numpy.Concatenate),
        *(numpy.Mean, numpy.Sum, numpy.Max, numpy.Min, numpy.ExpandDims),
    )

    def holds(self, layer: Any, shapes: Sequence[Any]) -> bool:
        """Unless an axis is that of samples."""
        if type(layer) in Operation.layers:
            # Of fewer axes, the first meets another than that of samples.
            return len({len(shape) for shape in shapes}) == 1
        rank = len(shapes[0]) + isinstance(layer, numpy.ExpandDims)
        # Keras makes a list of an axis.
        axes = keras.tree.flatten(layer.axis)
        return all(axis is not None and axis % rank for axis in axes)

    def call(
        self, layer: Any, layout: SampleLayout, args: Any, kwargs: Any
    ) -> Any:
        """The operation on each device."""
        return each_alone(layer, type(layer).call, layout, args, kwargs)
