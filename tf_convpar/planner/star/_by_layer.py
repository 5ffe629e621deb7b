"""`ConvParallelStrategy(plan="auto")`: each layer is planned when it is built.

Phases of a step follow one another (`_cost`). So the best split of a layer does
not depend on other layers, and nothing is lost by planning one at a time, as
long as memory is no limit. Where memory may be short, plan the whole model:
`calibrate`, then `plan`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar import layers
from tf_convpar._compat.keras import print_msg
from tf_convpar.algorithms import ASSUMED_BATCH
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure import progress
from tf_convpar.planner.measure._calibrate import calibrate_graph
from tf_convpar.planner.measure._own_thread import in_own_thread
from tf_convpar.planner.star._calibrate import measured_star_of
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._of_model import convolution_of
from tf_convpar.planner.star._of_model import wire_bytes
from tf_convpar.planner.star._optimum import allocate
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Name of every layer in what is kept, which does not depend on its own.
_NAME = "layer"


class LayerByLayer:
    """Measures and plans the layers of one strategy."""

    def __init__(self, strategy: ConvParallelStrategy) -> None:
        self._strategy = strategy
        self._links: Sequence[Link] | None = None

    def counts(
        self, layer: Any, input_shape: Sequence[int | None]
    ) -> tuple[int, ...] | None:
        """Kernels per device for a layer that is about to be built.

        None means equal shares. It is returned for layers other than `Conv1D`,
        `Conv2D` and `Conv3D`. It is also returned, with a warning, where images
        have no known size or kernels are in groups.
        """
        if not isinstance(layer, layers.KINDS):
            return None
        batch = input_shape[0] or ASSUMED_BATCH
        geometry: Any = layers.geometry(layer, input_shape, batch)
        if None in geometry.image or layer.groups != 1:
            warnings.warn(
                f"Layer '{layer.name}' cannot be measured: it has groups, or "
                "images of unknown size. Its kernels are shared equally.",
                stacklevel=5,
            )
            return None
        convolution = convolution_of(_NAME, geometry, layer.use_bias)
        network = Network(
            (convolution,), batch, wire_bytes(self._strategy.wire_dtype)
        )
        doing = f"Measuring layer '{layer.name}'"
        with progress(doing, print_msg) as report:
            # Where no strategy is in scope that would plan this one, too.
            graph = in_own_thread(_alone, layer, input_shape, report=report)
            calibration = calibrate_graph(
                graph,
                self._strategy,
                batch,
                algorithm=layer.algorithm,
                links=self._links,
                report=report,
            )
            self._links = calibration.links
            largest = geometry, layer.algorithm
            star = measured_star_of(
                graph, network, calibration, largest, report=report
            )
        (counts,) = allocate(star).values()
        return counts


def _alone(layer: Any, input_shape: Sequence[int | None], report: Any) -> Graph:
    """The graph of a model that has only this layer, after others that learn.

    Its activation is no part of the convolution. To draw initial weights would
    change those that are drawn next.
    """
    kind = layers.KINDS[layer.rank - 1]
    twin = kind(
        layer.filters,
        layer.kernel_size,
        layer.strides,
        layer.padding,
        layer.data_format,
        layer.dilation_rate,
        use_bias=layer.use_bias,
        kernel_initializer="zeros",
        dtype=layer.dtype_policy,
        name=_NAME,
    )
    inputs = keras.Input(tuple(input_shape[1:]))
    graph = calls_of(keras.Model(inputs, twin(inputs), name=_NAME))
    calls = (dataclasses.replace(c, before=True) for c in graph.calls)
    return dataclasses.replace(graph, calls=tuple(calls), keys={})
