"""Measures a model's layers on the devices of a cluster, and their links."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import math
import os
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import machines
from tf_convpar._compat.keras import layers_of
from tf_convpar.algorithms import facts
from tf_convpar.planner import _calibration
from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._calibration import Work
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure import _updates
from tf_convpar.planner.measure import cache
from tf_convpar.planner.measure._layers import Works
from tf_convpar.planner.measure._own_thread import Report
from tf_convpar.planner.measure._own_thread import in_own_thread
from tf_convpar.planner.measure.clock import Clock
from tf_convpar.planner.measure.links import measure_link
from tf_convpar.planner.measure.links import message_s
from tf_convpar.planner.measure.links import transfer_s
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Links between all devices are measured up to this number of devices.
_ALL_LINKS = 4
# Part of a device's free memory that the model may take.
_MEMORY_SHARE = 0.8


def calibrate(
    model: keras.Model,
    strategy: ConvParallelStrategy,
    batch_size: int,
    *,
    algorithm: str | None = None,
    fresh: bool = False,
    keep: bool = True,
    report: Report = lambda name: None,
) -> Calibration:
    """Measures a model's layers on each device, and the links between devices.

    ```python
    calibration = convpar.calibrate(model, strategy, batch_size=32)
    plan = convpar.plan(model, calibration)
    ```

    Layers of one kind, shape and setting are measured once. Devices that share
    no core are measured at the same time. The result is kept in the user's
    cache folder (`~/.cache/tf_convpar`, or `$TF_CONVPAR_CACHE`), under a key of
    everything that it depends on: layers and shapes, batch, optimizer, devices,
    their addresses, processors, cores, quotas and threads, cards with their
    drivers, and versions.

    Args:
        model: Sequential or functional model, built. Its optimizer is measured
            if it is compiled, SGD otherwise.
        strategy: Strategy whose devices are measured.
        batch_size: Samples of a step.
        algorithm: Algorithm of all convolutions; None for their own.
        fresh: Whether to measure even if the cache has a result.
        keep: Whether to keep the result in the cache.
        report: Function that is called with the name of what is measured next.

    Raises:
        ValueError: The model has no graph, or inputs of unknown size; or the
            first of the strategy's devices is not the chief's.
    """
    optimizer = None
    if getattr(model, "compiled", False):
        optimizer = model.optimizer
    return calibrate_graph(
        calls_of(model),
        strategy,
        batch_size,
        optimizer,
        algorithm=algorithm,
        fresh=fresh,
        keep=keep,
        report=report,
    )


def calibrate_graph(
    graph: Graph,
    strategy: ConvParallelStrategy,
    batch_size: int,
    optimizer: Any = None,
    *,
    algorithm: str | None = None,
    links: Sequence[Link] | None = None,
    fresh: bool = False,
    keep: bool = True,
    report: Report = lambda name: None,
) -> Calibration:
    """Measures a graph that has been read; see `calibrate`.

    Args:
        graph: Graph of the model.
        strategy: As for `calibrate`.
        batch_size: As for `calibrate`.
        optimizer: Optimizer that is measured; None for SGD.
        algorithm: As for `calibrate`.
        links: Links that are known, in place of measured ones.
        fresh: As for `calibrate`.
        keep: As for `calibrate`.
        report: As for `calibrate`.
    """
    devices = chief_first(strategy)
    optimizer = optimizer or keras.optimizers.SGD()
    file = cache.path(
        f"{graph.name}-{batch_size}",
        _key(graph, strategy, devices, optimizer, batch_size, algorithm),
    )
    if not fresh:
        known = cache.find(file, _calibration.load)
        if known is not None:
            return known
    with cache.alone(report):
        calibration = in_own_thread(
            _measured,
            graph,
            devices,
            optimizer,
            batch_size,
            algorithm,
            links,
            report=report,
        )
    if keep:
        cache.keep(calibration, file, Calibration.save)
    return calibration


def chief_first(strategy: ConvParallelStrategy) -> tuple[str, ...]:
    """The strategy's devices in its order, of which the chief's is the first.

    Raises:
        ValueError: The first is another device.
    """
    if strategy.devices[0] != strategy.chief_device:
        raise ValueError(
            "Expected the first of the strategy's devices to be the chief's, "
            f"{strategy.chief_device}. Received: {strategy.devices}. Give "
            "`devices` in that order."
        )
    return tuple(strategy.devices)


def _measured(
    graph: Graph,
    devices: Sequence[str],
    optimizer: Any,
    batch: int,
    algorithm: str | None,
    links: Sequence[Link] | None,
    report: Report,
) -> Calibration:
    chief, *others = devices
    with _unchanged(graph):
        works = _works_on(graph, devices, batch, algorithm, report)
    clock = Clock(report=report)
    if links is None:
        links = _measured_links(devices, clock)
    rates = [k.bytes_per_s for k in links if others[:1] == [k.target]]
    byte_s = transfer_s(chief, others, clock, min(rates, default=math.inf))
    seconds_of_message = message_s(chief, others, clock)
    measured_devices = []
    for name in devices:
        memory = machines.memory_bytes(name)
        slower = _slower(name, chief, works)
        measured_devices.append(
            MeasuredDevice(
                name,
                works[name],
                update_s=_updates.update_s(optimizer, name, clock),
                byte_s=slower * byte_s,
                message_s=slower * seconds_of_message,
                memory_bytes=memory and int(_MEMORY_SHARE * memory),
            )
        )
    return Calibration(
        work_keys.fingerprint(graph),
        batch,
        tuple(measured_devices),
        tuple(links),
        _updates.slots_of(optimizer),
        _facts(devices),
    )


@contextlib.contextmanager
def _unchanged(graph: Graph) -> Iterator[None]:
    """Context after which layers have their states that Keras does not know.

    Those that it knows are not changed by what is measured.
    """
    layers = [c.layer for c in graph.calls if hasattr(c.layer, "weights")]
    held = [
        value
        for layer in layers
        for one in (layer, *layers_of(layer))
        for value in vars(one).values()
    ]
    variables = [v for v in held if isinstance(v, tf.Variable)]
    variables += [v.state for v in held if isinstance(v, tf.random.Generator)]
    values = [tf.identity(variable) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def _works_on(
    graph: Graph,
    devices: Sequence[str],
    batch: int,
    algorithm: str | None,
    report: Report,
) -> dict[str, Mapping[str, Work]]:
    """The times of all layers on each device.

    Devices that share no cores are measured at the same time. Of several with
    equal processors, only the first one's curves over samples and filters are
    measured. The others get these curves, scaled to their own speed.
    """
    report("reading the model")
    chosen = algorithm == "auto" or any(
        getattr(call.layer, "algorithm", None) == "auto" for call in graph.calls
    )
    kinds = {name: _kind(name, chosen) for name in devices}
    traced = dict[tuple[str, ...], Works]()
    for name, kind in kinds.items():
        if kind not in traced:
            traced[kind] = Works(graph, name, algorithm)
    # For each device the first one of its kind of processor.
    of_kind = {_kind(name, True): name for name in reversed(devices)}
    first = {name: of_kind[_kind(name, True)] for name in devices}
    works: dict[str, Mapping[str, Work]] = {}

    def measure(names: Sequence[str]) -> None:
        for name in names:
            works[name] = traced[kinds[name]].on(
                name, batch, report, curves=first[name] == name
            )

    groups = machines.sharing_cores(devices)
    with futures.ThreadPoolExecutor(len(groups)) as threads:
        for done in [threads.submit(measure, group) for group in groups]:
            done.result()
    return {
        name: works[name]
        if first[name] == name
        else {
            key: work.along(works[first[name]][key])
            for key, work in works[name].items()
        }
        for name in devices
    }


def _slower(
    name: str, chief: str, works: Mapping[str, Mapping[str, Work]]
) -> float:
    """Time of a device for all layers, relative to the chief's.

    It is 1 for another kind of processor: what its transfers cost is not known.
    """
    if _kind(name, True) != _kind(chief, True):
        return 1.0
    seconds, chief_seconds = (
        sum(work.forward[-1] + work.backward[-1] for work in works[d].values())
        for d in (name, chief)
    )
    return seconds / chief_seconds


def _measured_links(devices: Sequence[str], clock: Clock) -> list[Link]:
    chief = devices[0]
    pairs = [
        (a, b)
        for a in devices
        for b in devices
        if a != b and (len(devices) <= _ALL_LINKS or chief in (a, b))
    ]
    measured = {(a, b): measure_link(a, b, clock) for a, b in pairs}
    for a in devices:
        for b in devices:
            if a != b and (a, b) not in measured:
                # A device has one interface, whatever is at the other end.
                there, then = measured[a, chief], measured[chief, b]
                measured[a, b] = Link(
                    a,
                    b,
                    min(there.bytes_per_s, then.bytes_per_s),
                    max(there.latency_s, then.latency_s),
                )
    return list(measured.values())


def _kind(device: str, chosen: bool) -> tuple[str, ...]:
    """Key that is the same for devices that can run the same traced graph.

    Args:
        device: Name of the device.
        chosen: Whether algorithms are chosen by measurement: then only equal
            processors have the same graph.
    """
    kind = machines.kind_of(device)
    if not chosen:
        return (kind,)
    return (kind, *facts(device)) if kind == "CPU" else (device,)


def _key(
    graph: Graph,
    strategy: ConvParallelStrategy,
    devices: Sequence[str],
    optimizer: Any,
    batch: int,
    algorithm: str | None,
) -> tuple[Any, ...]:
    config: dict[str, Any] = getattr(optimizer, "get_config", dict)()
    settings = json.dumps(
        _without_rates(config),
        sort_keys=True,
        default=lambda value: type(value).__name__,
    )
    counted = collections.Counter(
        work_keys.key(graph, c) for c in graph.calls if c.layer is not None
    )
    return (
        work_keys.fingerprint(graph),
        sorted(counted.items()),
        batch,
        [algorithm] if algorithm else sorted(graph.algorithms - {"direct"}),
        type(optimizer).__name__,
        settings,
        strategy.cluster,
        [(name, machines.identity(name)) for name in devices],
        _versions(),
    )


def _without_rates(config: Any) -> Any:
    """Settings of an optimizer, and of those within it, that cost time."""
    if not isinstance(config, dict):
        return config
    return {
        name: _without_rates(value)
        for name, value in config.items()
        if name not in ("name", "learning_rate")
    }


def _facts(devices: Sequence[str]) -> dict[str, str]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        **_versions(),
        "processors": "; ".join(map(machines.model, devices)),
        "measured": now.strftime("%F %T UTC"),
    }


def _versions() -> dict[str, str]:
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "oneDNN": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
    }
