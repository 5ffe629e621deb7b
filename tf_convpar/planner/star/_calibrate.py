"""`calibrate`: measures a model on the devices of a cluster, for the star.

Layers, links and updates are measured as for plans of whole models. What only
the star asks for is measured besides: what a joined byte costs, and in which
steps time grows with the number of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence

import keras

from tf_convpar import units
from tf_convpar.algorithms import Geometry
from tf_convpar.layers import convolutions
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import to_json
from tf_convpar.planner.measure import Clock
from tf_convpar.planner.measure import _calibrate
from tf_convpar.planner.measure import _updates
from tf_convpar.planner.measure import cache
from tf_convpar.planner.measure import links
from tf_convpar.planner.measure._own_thread import Report
from tf_convpar.planner.measure._own_thread import in_own_thread
from tf_convpar.planner.star import _calibration
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._of_measurements import star_of
from tf_convpar.planner.star._of_model import graph_and_network
from tf_convpar.planner.star._quantum import quantum_of
from tf_convpar.sharding import Graph
from tf_convpar.strategy.strategy import ConvParallelStrategy

THROUGHPUT = ("auto", "eval", "dry_run")


def calibrate(
    model: keras.Model,
    strategy: ConvParallelStrategy,
    batch_size: int,
    *,
    throughput: str | Sequence[float] = "auto",
    quantum: int | None = None,
    report: Callable[[str], None] = lambda name: None,
) -> StarCalibration:
    """Measures a model's layers on each device, and all links.

    ```python
    strategy = convpar.ConvParallelStrategy()
    calibration = star.calibrate(model, strategy, batch_size=64)
    plan = star.plan(calibration)
    ```

    What `convpar.calibrate` has measured is taken from the user's cache
    folder, and the result is kept there as well.

    Args:
        model: Sequential or functional model, built: plain Keras, or with
            parallel layers. Its optimizer is measured if it is compiled.
        strategy: Strategy whose devices are measured; the first is the
            chief's.
        batch_size: Images in a step.
        throughput: What to measure. `"auto"` takes what is in the cache, or
            measures and keeps it. `"eval"` measures and keeps. `"dry_run"`
            measures only. Otherwise rates in place of measured times, one for
            each device: floating point operations per second, or words such as
            `"200GFLOPS,10TFLOPS"`. The result is then not kept.
        quantum: Number of kernels that plans keep together; None to measure
            it.
        report: Function that is called with the name of what is measured next.

    Returns:
        The calibration. `StarCalibration.save` writes it to a file.

    Raises:
        ValueError: The model has no convolution to spread, is subclassed, or
            an argument is wrong.
    """
    if not isinstance(strategy, ConvParallelStrategy):
        raise ValueError(
            "Expected `strategy` to be a ConvParallelStrategy. Received: "
            f"{strategy!r}."
        )
    devices = _calibrate.chief_first(strategy)
    rates = _rates(throughput, len(devices))
    if rates is not None:
        quantum = quantum or 1
    optimizer = model.optimizer if model.compiled else keras.optimizers.SGD()
    slots = _updates.slots_of(optimizer)
    graph, network = graph_and_network(
        model, batch_size, strategy.wire_dtype, slots
    )
    keep = throughput in ("auto", "eval")
    calibration = _calibrate.calibrate_graph(
        graph,
        strategy,
        batch_size,
        optimizer,
        fresh=throughput in ("eval", "dry_run"),
        keep=keep,
        report=report,
    )
    name, geometry = max(
        convolutions(model, batch_size), key=lambda c: c[1].multiplications
    )
    layers = {call.name: call.layer for call in graph.calls}
    largest = geometry, getattr(layers[name], "algorithm", None)
    return measured_star_of(
        graph, network, calibration, largest, quantum, rates, keep, report
    )


def measured_star_of(
    graph: Graph,
    network: Network,
    calibration: Calibration,
    largest: tuple[Geometry, str | None],
    quantum: int | None = None,
    rates: Sequence[float] | None = None,
    keep: bool = True,
    report: Report = lambda name: None,
) -> StarCalibration:
    """What `star_of` makes, with joins and the quantum measured.

    Args:
        graph: Graph that was measured.
        network: Its convolutions.
        calibration: Measurements of it.
        largest: Geometry and algorithm of the convolution with most to do.
        quantum: As for `calibrate`.
        rates: As for `star_of`.
        keep: Whether the cache has it, or gets it.
        report: Function that is called with the name of what is measured next.
    """
    chief, *others = (device.name for device in calibration.devices)
    file = cache.path(
        f"{graph.name}-{calibration.batch}",
        (to_json(calibration), network, largest, quantum),
        "stars",
    )
    known = cache.find(file, _calibration.load) if keep else None
    if known is not None:
        return known

    def measure(report: Report) -> tuple[float, int]:
        clock = Clock(report=report)
        joins = links.join_s(chief, clock) if others else 0.0
        return joins, quantum or quantum_of(*largest, chief, clock)

    with cache.alone(report):
        join_s, steps = in_own_thread(measure, report=report)
    star_calibration = star_of(
        graph, network, calibration, join_s=join_s, quantum=steps, rates=rates
    )
    if keep:
        cache.keep(star_calibration, file, StarCalibration.save)
    return star_calibration


def _rates(
    throughput: str | Sequence[float], devices: int
) -> tuple[float, ...] | None:
    """The rates that are given in place of measured times; None if none."""
    if throughput in THROUGHPUT:
        return None
    words = throughput.split(",") if isinstance(throughput, str) else throughput
    try:
        rates = tuple(
            units.flops(rate) if isinstance(rate, str) else float(rate)
            for rate in words
        )
    except (TypeError, ValueError):
        rates = ()
    good = all(math.isfinite(rate) and rate > 0 for rate in rates)
    if not good or len(rates) != devices:
        raise ValueError(
            f"Expected `throughput` to be one of {', '.join(THROUGHPUT)}, or "
            f"{devices} rates, one for each device, such as "
            '"200GFLOPS,10TFLOPS". Received: '
            f"throughput={throughput!r}."
        )
    return rates
