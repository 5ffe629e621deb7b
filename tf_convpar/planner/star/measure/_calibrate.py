"""`calibrate`: measures a model's convolutions on the devices of a cluster.

First the rest of the network is measured on the chief, then each device by
itself, then the links: nothing else runs while something is timed. One process
at a time measures on a machine. A second one waits for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import layers_of
from tf_convpar.layers import convolutions
from tf_convpar.planner import units
from tf_convpar.planner.measure import _cache
from tf_convpar.planner.measure import _updates
from tf_convpar.planner.measure._calibrate import chief_first
from tf_convpar.planner.measure._clock import Clock
from tf_convpar.planner.star import _calibration
from tf_convpar.planner.star._calibration import StarCalibration
from tf_convpar.planner.star.measure._cluster import Subject
from tf_convpar.planner.star.measure._cluster import measure_cluster
from tf_convpar.planner.star.measure._convolutions import ConvolutionWork
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
) -> StarCalibration:
    """Measures a model's convolutions on each device, and all links.

    ```python
    strategy = convpar.ConvParallelStrategy()
    calibration = star.calibrate(model, strategy, batch_size=64)
    plan = star.plan(calibration)
    ```

    The result is kept in the user's cache folder (`~/.cache/tf_convpar`, or
    `$TF_CONVPAR_CACHE`), under a key of everything that it depends on: layers
    and shapes, batch, dtype, algorithms, optimizer, processors, threads, and
    versions. Where times are spread too wide even the third time, a warning
    says for what: something else works on that machine.

    Args:
        model: Sequential or functional model, built: plain Keras, or with
            parallel layers. Its optimizer and loss are measured if it is
            compiled.
        strategy: Strategy whose devices are measured; the first is the
            chief's.
        batch_size: Images in a step.
        throughput: What to measure. `"auto"` takes what is in the cache, or
            measures and keeps it. `"eval"` measures and keeps. `"dry_run"`
            measures only. Otherwise rates in place of measured times, one for
            each device: floating point operations per second, or words such as
            `"200GFLOPS,10TFLOPS"`. All else is then measured, and not kept.
        quantum: Number of kernels that plans keep together; None to measure
            it.
        report: Function that is called with the name of what is measured next.

    Returns:
        The calibration. `tf_convpar.planner.star.save` writes it to a file.

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
    file = _cache.path(
        f"{model.name}-{batch_size}",
        (*subject.key(devices), quantum, _rest_key(model)),
    )
    if throughput == "auto":
        known = _cache.find(file, _calibration.load)
        if known is not None:
            return known
    with _cache.alone(report):
        calibration = measure_cluster(
            subject, devices, quantum=quantum, rates=rates, report=report
        )
    if throughput in ("auto", "eval"):
        _cache.keep(calibration, file, _calibration.save)
    return calibration


def wire_bytes(strategy: ConvParallelStrategy) -> int:
    """Bytes of a number that travels between a strategy's devices."""
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
    layers = {layer.name: layer for layer in layers_of(model)}
    geometries = dict(convolutions(model, batch))
    works = tuple(
        ConvolutionWork(
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
        for layer in layers_of(model)
        if not isinstance(layer, keras.Model)
    ]
    compiled = (model.get_compile_config() or {}) if model.compiled else {}
    compiled = {k: v for k, v in compiled.items() if k != "optimizer"}
    return [tuple(x.shape) for x in model.inputs], layers, compiled


def _rates(
    throughput: str | Sequence[float], devices: int
) -> tuple[float, ...] | None:
    """The rates that are given in place of measured times; None if none."""
    if throughput in THROUGHPUT:
        return None
    try:
        rates = tuple(
            units.flops(rate) if isinstance(rate, str) else float(rate)
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
