"""Makes the star's calibration from one for plans of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import PASSES
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import Work
from tf_convpar.planner.balancing import alone
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._calibration import StarDevice
from tf_convpar.planner.star._calibration import Times
from tf_convpar.planner.star._calibration import proportional
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution
from tf_convpar.planner.star._of_model import graph_and_network
from tf_convpar.sharding import Graph

# Of the time of both gradients. They are measured together, and no phase of
# the star has one without the other.
_KERNELS_PART = 0.5


def of_measurements(
    model: Any, calibration: Calibration, wire_dtype: str | None = None
) -> StarCalibration:
    """The star's calibration, made from one of `convpar.calibrate`.

    ```python
    star.plan(star.of_measurements(model, calibration))
    ```

    Joining feature maps, which was not measured, is taken to cost nothing. Time
    is taken to grow with each kernel.

    Args:
        model: Model that was measured.
        calibration: Measurements of it.
        wire_dtype: Dtype in which tensors travel; None for float32.

    Raises:
        ValueError: They are of another model, or it has no convolution.
    """
    graph, network = graph_and_network(
        model, calibration.batch, wire_dtype, calibration.slots
    )
    work_keys.check(graph, calibration.model)
    return star_of(graph, network, calibration)


def star_of(
    graph: Graph,
    network: Network,
    calibration: Calibration,
    *,
    join_s: float = 0.0,
    quantum: int = 1,
    rates: Sequence[float] | None = None,
) -> StarCalibration:
    """The star's calibration, made from one of a graph.

    All calls of layers that are no convolutions of the network are the rest of
    a step, and run on the chief. The loss, which no plan moves, is left out.

    Args:
        graph: Graph that was measured.
        network: Its convolutions.
        calibration: Measurements of it.
        join_s: Seconds that the chief takes for one byte that it joins.
        quantum: Number of kernels that are computed in the time of one.
        rates: Operations per second of each device, in place of the measured
            times of convolutions.
    """
    names = {convolution.name for convolution in network}
    rest_s = alone(graph, calibration, names)[calibration.devices[0].name]
    # Of a layer that is called twice, the call that needs all gradients.
    keys = {
        call.name: work_keys.key(graph, call)
        for call in sorted(graph.calls, key=lambda call: call.before)
        if call.layer is not None
    }
    devices = []
    for d, device in enumerate(calibration.devices):
        times = {
            c.name: proportional(c, calibration.batch, rates[d])
            if rates
            else _times(c, device.works[keys[c.name]], calibration.batch)
            for c in network
        }
        devices.append(
            StarDevice(device.name, times, device.update_s, device.memory_bytes)
        )
    return StarCalibration(
        network,
        tuple(devices),
        calibration.links,
        rest_s=rest_s,
        join_s=join_s,
        transfer_s=calibration.devices[0].byte_s,
        quantum=quantum,
        facts=calibration.facts,
    )


def _times(convolution: StarConvolution, work: Work, batch: int) -> Times:
    """Times at each part of the filters that was measured."""
    parts = {
        max(1, round(part * convolution.filters)): part for part in work.filters
    }
    forward, backward = (
        [work.at(which, batch, part) for part in parts.values()]
        for which in PASSES
    )
    of_input = (1 - _KERNELS_PART) * convolution.input_gradient
    return Times(
        tuple(parts),
        tuple(forward),
        tuple(of_input * s for s in backward),
        tuple((1 - of_input) * s for s in backward),
    )
