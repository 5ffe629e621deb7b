"""`ConvParallelStrategy(plan="auto")`: each layer is planned when it is built.

Phases of a step follow one another (`_cost`), so each layer's best split is
its own matter as long as memory is no limit; nothing is lost by looking at one
layer at a time. Where memory may be short, plan the whole model:
`calibrate`, then `plan`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import keras

from tf_convpar.layers import _geometries
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure import _kept
from tf_convpar.planner.measure._calibrate import chief_first
from tf_convpar.planner.star import _calibration_file
from tf_convpar.planner.star._network import Convolution
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star.allocation import allocate
from tf_convpar.planner.star.measure._calibrate import wire_bytes
from tf_convpar.planner.star.measure._cluster import Subject
from tf_convpar.planner.star.measure._cluster import measure_cluster
from tf_convpar.planner.star.measure._convolutions import Work
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Where a layer is built for any batch.
ASSUMED_BATCH = 32


class Automatic:
    """Measures and plans the layers of one strategy."""

    def __init__(self, strategy: ConvParallelStrategy) -> None:
        self._strategy = strategy
        self._links: Sequence[Link] | None = None

    def counts(
        self, layer: Any, input_shape: Sequence[int | None]
    ) -> tuple[int, ...] | None:
        """Kernels per device for a layer that is about to be built.

        None, which means equal shares, for layers other than convolutions
        proper; and with a warning where its images have no known size or its
        kernels are in groups.
        """
        if not isinstance(layer, _geometries.KINDS):
            return None
        geometry = _geometries.geometry(
            layer, input_shape, input_shape[0] or ASSUMED_BATCH
        )
        if None in geometry.image or layer.groups != 1:
            warnings.warn(
                f"Layer '{layer.name}' cannot be measured: it has groups, or "
                "images of unknown size. Its kernels are shared equally.",
                stacklevel=5,
            )
            return None
        subject = _subject(self._strategy, layer, geometry)
        devices = chief_first(self._strategy)
        # Whatever the layer is called: it is "layer" there.
        file = _kept.path("layer", subject.key(devices))
        found = _kept.find(file, _calibration_file.load)
        if found is None:
            # Layers are built in the scope of a strategy, under tapes, or while
            # a graph is traced: a thread of its own knows of none of these.
            thread = futures.ThreadPoolExecutor(1)
            with _kept.alone(lambda name: None), thread:
                found = thread.submit(
                    measure_cluster, subject, devices, links=self._links
                ).result()
            _kept.keep(found, file, _calibration_file.save)
        self._links = found.links
        (counts,) = allocate(found).values()
        return counts


def _subject(
    strategy: ConvParallelStrategy, layer: Any, geometry: Any
) -> Subject:
    convolution = Convolution(
        "layer",
        geometry.image,
        geometry.output,
        geometry.channels,
        geometry.filters,
        geometry.window,
        bias=layer.use_bias,
    )
    network = Network((convolution,), geometry.batch, wire_bytes(strategy))
    work = Work("layer", geometry, layer.algorithm, layer.use_bias, True)
    return Subject(network, (work,), keras.optimizers.SGD())
