"""`calibrate`: measures a model's convolutions on the devices of a cluster.

The order: the rest of the network on the chief, then each device by itself,
then the links, so that nothing that is timed has company. One process at a
time measures on a machine: a second one waits for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers._geometries import convolutions
from tf_convpar.planner import _units
from tf_convpar.planner.measure import _kept
from tf_convpar.planner.measure import _updates
from tf_convpar.planner.measure._calibrate import chief_first
from tf_convpar.planner.measure._clock import Clock
from tf_convpar.planner.star import _calibration_file
from tf_convpar.planner.star._calibration import Calibration
from tf_convpar.planner.star.measure._cluster import Subject
from tf_convpar.planner.star.measure._cluster import measure_cluster
from tf_convpar.planner.star.measure._convolutions import Work
from tf_convpar.planner.star.measure._model import of_model
from tf_convpar.planner.star.measure._rest import rest_s
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
) -> Calibration:
    """What each device and each link takes for this model.

    ```python
    strategy = convpar.ConvParallelStrategy()
    calibration = convpar.calibrate(model, strategy, batch_size=64)
    plan = convpar.plan(calibration)
    ```

    Kept in the user's cache folder (`~/.cache/tf_convpar`, or
    `$TF_CONVPAR_CACHE`) under everything that it depends on: layers and
    shapes, batch, dtype, algorithms, optimizer, processors, threads, and
    versions. Where samples spread too wide even the third time, a warning
    says what was affected: something else works on that machine.

    Args:
        model: Sequential or functional, built, and compiled if its optimizer
            and loss are to count. Plain Keras or with parallel layers.
        strategy: Whose devices are measured; the first is the chief's.
        batch_size: Images in a step.
        throughput: `"auto"` takes what is in the cache, or measures and keeps
            it; `"eval"` measures and keeps; `"dry_run"` measures only. Or
            rates instead of measured times, one for each device, in floating
            point operations per second or in words:
            `"200GFLOPS,10TFLOPS"`; all else is then measured, and not kept.
        quantum: Kernels that plans keep together; None to find out.
        report: Called with the name of what is measured next.

    Returns:
        The calibration. `tf_convpar.planner.save` writes it to a file.

    Raises:
        ValueError: The model has no convolution to spread, is subclassed, or
            an argument is wrong.
    """
    if not isinstance(strategy, ConvParallelStrategy):
        raise ValueError(
            "Expected `strategy` to be a ConvParallelStrategy. Received: "
            f"{strategy!r}."
        )
    devices = chief_first(strategy)
    rates = _rates(throughput, len(devices))
    subject = _subject(model, strategy, batch_size)
    file = _kept.path(
        f"{model.name}-{batch_size}",
        (*subject.key(devices), quantum, _rest_key(model)),
    )
    if throughput == "auto":
        known = _kept.find(file, _calibration_file.load)
        if known is not None:
            return known
    with _kept.alone(report):
        calibration = measure_cluster(
            subject, devices, quantum=quantum, rates=rates, report=report
        )
    if throughput in ("auto", "eval"):
        _kept.keep(calibration, file, _calibration_file.save)
    return calibration


def wire_bytes(strategy: ConvParallelStrategy) -> int:
    """Of a number that travels."""
    return int(tf.as_dtype(strategy.wire_dtype or "float32").size)


def _subject(
    model: keras.Model, strategy: ConvParallelStrategy, batch: int
) -> Subject:
    optimizer = model.optimizer if model.compiled else keras.optimizers.SGD()
    network = of_model(
        model,
        batch,
        wire_bytes=wire_bytes(strategy),
        slots=_updates.slots_of(optimizer),
    )
    layers = {
        layer.name: layer for layer in model._flatten_layers(recursive=True)
    }
    geometries = dict(convolutions(model, batch))
    works = tuple(
        Work(
            convolution.name,
            geometries[convolution.name],
            getattr(layers[convolution.name], "algorithm", None),
            convolution.bias,
            convolution.input_gradient,
        )
        for convolution in network
    )
    names = {work.name for work in works}

    def rest(clock: Clock) -> float:
        return rest_s(model, names, batch, strategy.chief_device, clock)

    return Subject(network, works, optimizer, rest)


def _rest_key(model: keras.Model) -> tuple[Any, ...]:
    """What the rest of a step depends on: other layers, loss and metrics."""
    layers = [
        (
            type(layer).__name__,
            {
                key: value
                for key, value in layer.get_config().items()
                # Neither changes what a step takes on one device.
                if key not in ("name", "shards")
            },
        )
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, keras.Model)
    ]
    compiled = (model.get_compile_config() or {}) if model.compiled else {}
    compiled = {k: v for k, v in compiled.items() if k != "optimizer"}
    return [tuple(x.shape) for x in model.inputs], layers, compiled


def _rates(
    throughput: str | Sequence[float], devices: int
) -> tuple[float, ...] | None:
    """Those given in place of measured times."""
    if throughput in THROUGHPUT:
        return None
    try:
        rates = tuple(
            _units.flops(rate) if isinstance(rate, str) else float(rate)
            for rate in (
                throughput.split(",")
                if isinstance(throughput, str)
                else throughput
            )
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
