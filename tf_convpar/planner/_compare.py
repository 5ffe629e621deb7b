"""Which way to train is the fastest: alone, split, replicas, or groups.

A step of replicas is predicted from the same measurements as that of a split
model, and from the messages that `placement._trees` says are sent.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.machines import short
from tf_convpar.placement import copy_pairs
from tf_convpar.placement import sum_pairs
from tf_convpar.planner import _balancing
from tf_convpar.planner import _plan
from tf_convpar.planner import _work_keys
from tf_convpar.planner._calibration import PASSES
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._costs import Costs
from tf_convpar.planner._ways import Settings
from tf_convpar.plans import Plan
from tf_convpar.plans import Prediction
from tf_convpar.sharding import Graph
from tf_convpar.sharding import calls_of
from tf_convpar.units import seconds_text

# Bytes of one number of a weight.
_WIDTH = 4
_NUMBERS_OF_GROUPS = (2, 3, 4, 8, 16)
# The most names in a row.
_MOST_NAMED = 6


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train a model on a cluster, and what is predicted of it.

    Attributes:
        kind: `"alone"`, `"split"`, `"replicas"` or `"groups"`.
        method: Name of the class in `convpar.replicas`; None for one model.
        groups: Names of the devices of each replica.
        batches: Samples of each replica's step.
        step_s: Seconds of a step.
        received_bytes: Bytes of a step into the device that receives most.
        exact: Whether a step gives the numbers of one device at the batch that
            was measured. (Batch normalization in replicas sees only their own
            samples.)
    """

    kind: str
    method: str | None
    groups: tuple[tuple[str, ...], ...]
    batches: tuple[int, ...]
    step_s: float
    received_bytes: int
    exact: bool

    @property
    def samples_per_s(self) -> float:
        """Samples from which all replicas together learn in a second."""
        return sum(self.batches) / self.step_s

    @property
    def label(self) -> str:
        """A few words for readers."""
        parts = [_listed(map(short, group), " + ") for group in self.groups]
        devices = _listed(parts, ", ")
        name = f"{self.method} of {self.kind}" if self.method else self.kind
        return f"{name}: {devices}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self) | {"samples_per_s": self.samples_per_s}


def compare(
    model: keras.Model,
    calibration: Calibration,
    wire_dtype: str | None = None,
    plan: Plan | None = None,
    moments: str = "all",
) -> tuple[Way, ...]:
    """Ways to train a model, those that learn from most samples a second first.

    ```python
    calibration = convpar.calibrate(model, strategy, batch_size=32)
    for way in convpar.compare(model, calibration):
        print(way.label, way.samples_per_s)
    ```

    Args:
        model: Model that was measured.
        calibration: Measurements of the model on the devices.
        wire_dtype: Dtype in which tensors travel in split models; None for
            their own.
        plan: What `plan` returned for them; None to plan.
        moments: As for `parallelize`, in split models.

    Returns:
        The fastest device alone; the model split over all of them; a replica
        on each, with the numbers of one device (`SyncSGD`) and with as many
        samples each (`SyncEASGD`); and, of three devices or more, replicas of
        groups of devices as equal as can be.

    Raises:
        ValueError: The calibration is of another model.
        RuntimeError: A plan has no proof within half a minute.
    """
    plan = plan or _plan.plan(model, calibration, wire_dtype, moments)
    settings = Settings(wire_dtype, moments)
    return ways_of(calls_of(model), calibration, plan, settings)


def ways_of(
    graph: Graph, calibration: Calibration, plan: Plan, settings: Settings
) -> tuple[Way, ...]:
    """The ways for a graph that has been read; see `compare`."""
    found = []
    batch = calibration.batch
    if plan.best_single is not None:
        device, seconds = plan.best_single
        found.append(
            Way("alone", None, ((device,),), (batch,), seconds, 0, True)
        )
    if plan.prediction is not None and len(plan.used) > 1:
        seconds = plan.prediction.step_s
        most = max(plan.prediction.received().values(), default=0)
        groups = (tuple(plan.used),)
        found.append(Way("split", None, groups, (batch,), seconds, most, True))
    able = [
        device.name
        for device in calibration.devices
        if device.name in _plan.singles_of(_whole(graph, calibration))
    ]
    if len(able) > 1:
        replicas = _Replicas(graph, calibration, able)
        # As many samples as there are at all, if not each can have one.
        if batch >= len(able):
            found.append(replicas.gradients())
        found.append(replicas.elastic())
    for number in _NUMBERS_OF_GROUPS:
        if number >= len(calibration.devices):
            break
        with contextlib.suppress(ValueError):
            found.append(_groups(graph, calibration, number, settings))
    return tuple(sorted(found, key=lambda way: -way.samples_per_s))


def advice(ways: Sequence[Way]) -> str:
    """Says in a line which way is the fastest, and which without a change."""
    exact = next((way for way in ways if way.exact), None)
    lines = []
    if exact is not None:
        lines.append(
            f"With the numbers of one device, {exact.label} is the fastest: "
            f"{seconds_text(exact.step_s)} a step, "
            f"{exact.samples_per_s:.3g} samples a second."
        )
    first = ways[0]
    if not first.exact:
        rate = first.samples_per_s
        times = ""
        if exact is not None:
            times = f", {rate / exact.samples_per_s:.2f} times as many"
        lines.append(
            f"{first.label} learns from {rate:.3g} samples a second{times}, "
            f"{sum(first.batches)} in a step: each may teach less."
        )
    return " ".join(lines)


def _listed(names: Iterable[str], between: str) -> str:
    found = list(names)
    if len(found) > _MOST_NAMED:
        more = len(found) - _MOST_NAMED + 1
        found = [*found[: _MOST_NAMED - 1], f"{more} more"]
    return between.join(found)


class _Replicas:
    """A replica on each of some devices; the centre is with the first."""

    def __init__(
        self, graph: Graph, calibration: Calibration, names: Sequence[str]
    ) -> None:
        self._graph = graph
        self._calibration = calibration
        self._devices = [d for d in calibration.devices if d.name in names]
        self._names = [device.name for device in self._devices]
        self._wire = _Wire(calibration, _WIDTH * _weights(graph))

    def gradients(self) -> Way:
        """SyncSGD: gradients are added when all are there, then one steps."""
        batches = self._balanced(self._calibration.batch)
        root = self._devices[0]
        step = max(self._seconds(batches))
        step += self._wire.seconds(sum_pairs(self._names, root.name))
        step += self._wire.seconds(copy_pairs(self._names, root.name))
        step += _weights(self._graph) * root.update_s
        return self._way("SyncSGD", batches, step, exact=True)

    def elastic(self) -> Way:
        """SyncEASGD 3: weights travel while gradients are computed."""
        total = self._calibration.batch * len(self._devices)
        batches = self._balanced(total)
        step = max(
            *self._seconds(batches),
            self._wire.seconds(sum_pairs(self._names, self._names[0])),
            self._wire.seconds(copy_pairs(self._names, self._names[0])),
        )
        # The optimizer's step, and the centre's pull.
        step += (
            2
            * _weights(self._graph)
            * max(device.update_s for device in self._devices)
        )
        return self._way("SyncEASGD", batches, step, exact=False)

    def _way(
        self, method: str, batches: Sequence[int], step: float, exact: bool
    ) -> Way:
        return Way(
            "replicas",
            method,
            tuple((name,) for name in self._names),
            tuple(batches),
            step,
            self._wire.received(self._names, self._names[0]),
            exact,
        )

    def _balanced(self, total: int) -> list[int]:
        one = [1] * len(self._devices)
        given = _balancing.balanced(
            total - len(one), [self._of(device) for device in self._devices]
        )
        return [a + b for a, b in zip(one, given, strict=True)]

    def _seconds(self, batches: Sequence[int]) -> list[float]:
        """Seconds of each replica's gradient, held up by what travels."""
        delays = self._wire.delays(self._devices)
        return [
            self._of(device)(n) + delay
            for device, n, delay in zip(
                self._devices, batches, delays, strict=True
            )
        ]

    def _of(self, device: MeasuredDevice) -> Callable[[int], float]:
        graph = self._graph
        works = [
            device.works[_work_keys.key(graph, call)]
            for call in graph.calls
            if call.layer is not None
        ]
        return lambda n: sum(
            work.at(which, n, on_shards=False)
            for work in works
            for which in PASSES
        )


class _Wire:
    """Messages of one vector between devices."""

    def __init__(self, calibration: Calibration, bytes_: int) -> None:
        self._links = {(k.source, k.target): k for k in calibration.links}
        self._bytes = bytes_

    def seconds(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Seconds until all have arrived, each when its sender is ready.

        An interface has one message at a time in each direction.
        """
        out: dict[str, float] = collections.defaultdict(float)
        into: dict[str, float] = collections.defaultdict(float)
        for source, target in pairs:
            link = self._links[source, target]
            # Who has not received all that it waits for sends later.
            begin = max(out[source], into[source], into[target])
            end = begin + link.latency_s + self._bytes / link.bytes_per_s
            out[source] = into[target] = end
        return max(into.values(), default=0.0)

    def received(self, names: Sequence[str], root: str) -> int:
        """Bytes into the device that receives most."""
        pairs = [*sum_pairs(names, root), *copy_pairs(names, root)]
        counts = collections.Counter(target for _, target in pairs)
        return self._bytes * max(counts.values())

    def delays(self, devices: Sequence[MeasuredDevice]) -> list[float]:
        """Seconds by which messages hold up each device's computing."""
        names = [device.name for device in devices]
        pairs = [*sum_pairs(names, names[0]), *copy_pairs(names, names[0])]
        return [
            sum(device.name in pair for pair in pairs)
            * (device.byte_s * self._bytes + device.message_s)
            for device in devices
        ]


def _groups(
    graph: Graph, calibration: Calibration, number: int, settings: Settings
) -> Way:
    """SyncEASGD of so many groups, as equally fast as can be.

    The members' shards travel to the first device of the group and back, for
    the exchange with the centre, which is with the first group.

    Raises:
        ValueError: The devices of a group lack the memory.
    """
    parts = _alike(_balancing.alone(graph, calibration), number)
    found = [
        _split(graph, calibration, part, calibration.batch, settings)
        for part in parts
    ]
    # Faster groups get larger batches, as `shares="auto"` gives them.
    batches = _balancing.balanced(
        number * calibration.batch,
        [
            (lambda n, s=own.step_s: n * s)  # type: ignore[misc]
            for own, _ in found
        ],
    )
    found = [
        _split(graph, calibration, part, max(1, n), settings)
        for part, n in zip(parts, batches, strict=True)
    ]
    names = [part[0] for part in parts]
    over = _Wire(calibration, _WIDTH * _weights(graph))
    rates = {k.target: k.bytes_per_s for k in calibration.links}
    gathered = max(
        away / rates[name] for name, (_, away) in zip(names, found, strict=True)
    )
    exchange = gathered + max(
        over.seconds(sum_pairs(names, names[0])),
        over.seconds(copy_pairs(names, names[0])),
    )
    most = [
        max(prediction.received().values(), default=0) + away
        for prediction, away in found
    ]
    return Way(
        "groups",
        "SyncEASGD",
        tuple(map(tuple, parts)),
        tuple(batches),
        max(exchange, *(own.step_s for own, _ in found)) + gathered,
        over.received(names, names[0]) + max(most),
        exact=False,
    )


def _split(
    graph: Graph,
    calibration: Calibration,
    names: Sequence[str],
    batch: int,
    settings: Settings,
) -> tuple[Prediction, int]:
    """The step of a group, and bytes of weights that its first device lacks.

    Raises:
        ValueError: The devices lack the memory.
    """
    own = dataclasses.replace(_part(calibration, names), batch=batch)
    plan = _plan.plan_graph(graph, own, settings)
    if plan.prediction is None:
        raise ValueError(plan.reason)
    return plan.prediction, _WIDTH * _stored_away(graph, plan)


def _alike(seconds: dict[str, float], number: int) -> list[list[str]]:
    """Devices in groups whose speeds add up to about the same."""
    parts: list[list[str]] = [[] for _ in range(number)]
    speeds = [0.0] * number
    for name in sorted(seconds, key=lambda name: seconds[name]):
        slowest = min(range(number), key=speeds.__getitem__)
        parts[slowest].append(name)
        speeds[slowest] += 1 / seconds[name]
    return parts


def _part(calibration: Calibration, names: Sequence[str]) -> Calibration:
    """The calibration of some devices; what is not split is on the first."""
    devices = {device.name: device for device in calibration.devices}
    return dataclasses.replace(
        calibration,
        devices=tuple(devices[name] for name in names),
        links=tuple(
            link
            for link in calibration.links
            if link.source in names and link.target in names
        ),
    )


def _stored_away(graph: Graph, plan: Plan) -> int:
    """Weights that the first device does not store."""
    return sum(
        math.prod(call.layer.kernel.shape)
        * sum(plan.allocation[call.name][1:])
        // sum(plan.allocation[call.name])
        for call in graph.convolutions
        if hasattr(call.layer, "kernel")
    )


def _weights(graph: Graph) -> int:
    layers = {id(call.layer): call.layer for call in graph.calls}.values()
    return sum(
        math.prod(weight.shape)
        for layer in layers
        for weight in getattr(layer, "trainable_weights", ())
    )


def _whole(graph: Graph, calibration: Calibration) -> Costs:
    return Costs(graph, calibration, _balancing.whole(graph, calibration))
