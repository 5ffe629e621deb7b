"""`ConvParallelStrategy(plan="auto")`: each layer is planned when it is built.

Phases of a step follow one another (`_cost`). So the best split of a layer does
not depend on other layers, and nothing is lost by planning one at a time, as
long as memory is no limit. Where memory may be short, plan the whole model:
`calibrate`, then `plan`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar import layers
from tf_convpar._compat.keras import print_msg
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure import _cache
from tf_convpar.planner.measure import progress
from tf_convpar.planner.measure._calibrate import chief_first
from tf_convpar.planner.measure._own_thread import apart
from tf_convpar.planner.star import _calibration
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution
from tf_convpar.planner.star._optimum import allocate
from tf_convpar.planner.star.measure._calibrate import wire_bytes
from tf_convpar.planner.star.measure._cluster import Subject
from tf_convpar.planner.star.measure._cluster import measure_cluster
from tf_convpar.planner.star.measure._convolutions import ConvolutionWork
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Images in a step, where a layer is built for any batch.
ASSUMED_BATCH = 32


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
        geometry = layers.geometry(
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
        # The file does not depend on the layer's name: there it is "layer".
        file = _cache.path("layer", subject.key(devices))
        found = _cache.find(file, _calibration.load)
        if found is None:
            doing = f"Measuring layer '{layer.name}'"
            with progress(doing, print_msg) as report, _cache.alone(report):
                found = apart(
                    lambda subject, devices, report: measure_cluster(
                        subject, devices, links=self._links, report=report
                    ),
                    subject,
                    devices,
                    report=report,
                )
            _cache.keep(found, file, _calibration.save)
        self._links = found.links
        (counts,) = allocate(found).values()
        return counts


def _subject(
    strategy: ConvParallelStrategy, layer: Any, geometry: Any
) -> Subject:
    convolution = StarConvolution(
        "layer",
        geometry.image,
        geometry.output,
        geometry.channels,
        geometry.filters,
        geometry.window,
        bias=layer.use_bias,
    )
    network = Network((convolution,), geometry.batch, wire_bytes(strategy))
    work = ConvolutionWork(
        "layer", geometry, layer.algorithm, layer.use_bias, True
    )
    return Subject(network, (work,), keras.optimizers.SGD())
