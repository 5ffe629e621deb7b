"""Predicts methods whose replicas wait for the centre, not for one another.

A replica's cycle is its steps up to a message, the message, the centre's step,
and the answer. The centre is on the chief's device, whose interface carries the
messages of all others, and which serves one of them at a time. Where that is
less than they would send, all of them are slowed alike.
"""

from __future__ import annotations

import dataclasses

from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._interfaces import Interfaces
from tf_convpar.planner._replica_times import WIDTH
from tf_convpar.planner._replica_times import ReplicaTimes
from tf_convpar.planner._ways_to_train import OWN_STEPS
from tf_convpar.planner._ways_to_train import REPLICAS
from tf_convpar.planner._ways_to_train import Arguments
from tf_convpar.planner._ways_to_train import Way


@dataclasses.dataclass(frozen=True)
class Cycle:
    """The steps and answers between two messages of a replica.

    Attributes:
        steps: Steps of the replica.
        answers: Vectors that it gets for one that it sends.
        updates: How often it goes over its weights in a step.
    """

    steps: int
    answers: float
    updates: int


def cycle_of(method: str, arguments: Arguments) -> Cycle:
    """The cycle of a method that does not wait.

    Downpour's replicas receive an answer only when they fetch. They go over
    their weights twice in a step, to update and to add up what they push.
    Elastic ones update and are pulled; those of a parameter server only
    replace their weights by the answer.
    """
    if method == "DownpourSGD":
        push, fetch = arguments.n_push, arguments.fetch
        return Cycle(push, push / fetch, updates=2)
    return Cycle(1, 1.0, updates=2 if method == "AsyncEASGD" else 1)


def arrivals(replicas: ReplicaTimes, method: str, arguments: Arguments) -> Way:
    """Predicts a method whose replicas do not wait for one another."""
    calibration, devices = replicas.calibration, replicas.devices
    cycle = cycle_of(method, arguments)
    batches = replicas.equal(calibration.batch)
    centre = calibration.devices[0]
    interfaces = Interfaces(calibration.links)
    vector = WIDTH * replicas.weights
    serve = replicas.update(centre)
    # Cycles a second.
    rates = {
        device.name: 1
        / (
            _computing_s(replicas, device, batch, cycle)
            + _message_s(device, centre, cycle, vector, interfaces)
            + serve
        )
        for device, batch in zip(devices, batches, strict=True)
    }
    others = [name for name in rates if name != centre.name]
    sent = {(name, centre.name): rates[name] * vector for name in others}
    answered = {(b, a): cycle.answers * n for (a, b), n in sent.items()}
    # Parts of a second that they would have of the centre's interface, and of
    # its device.
    slowed = max(
        1.0,
        interfaces.busy(sent),
        interfaces.busy(answered),
        serve * sum(rates[name] for name in others),
    )
    for name in others:
        rates[name] /= slowed
    if centre.name in rates:
        # Its own replica computes in what is left of the device.
        each = serve + _processor_s(centre, cycle, vector)
        busy = each * sum(rates[name] for name in others)
        rates[centre.name] *= max(0.0, 1 - busy)
    learned = cycle.steps * sum(
        rate * batch
        for rate, batch in zip(rates.values(), batches, strict=True)
    )
    step = sum(batches) / learned
    received = [step * vector * sum(rates[name] for name in others)]
    received += [step * vector * cycle.answers * rates[n] for n in others]
    return Way(
        *(REPLICAS, method),
        tuple((device.name,) for device in devices),
        tuple(batches),
        step,
        round(max(received)),
        OWN_STEPS,
    )


def _computing_s(
    replicas: ReplicaTimes, device: MeasuredDevice, batch: int, cycle: Cycle
) -> float:
    """Seconds of a cycle that a replica computes."""
    once = replicas.gradient(device)(batch)
    once += cycle.updates * replicas.update(device)
    return cycle.steps * once


def _message_s(
    device: MeasuredDevice,
    centre: MeasuredDevice,
    cycle: Cycle,
    vector: int,
    interfaces: Interfaces,
) -> float:
    """Seconds of a message to the centre and its answers; of its own none."""
    if device.name == centre.name:
        return 0.0
    there = interfaces.links[device.name, centre.name]
    back = interfaces.links[centre.name, device.name]
    return _processor_s(device, cycle, vector) + sum(
        count * (link.latency_s + vector / link.bytes_per_s)
        for link, count in ((there, 1.0), (back, cycle.answers))
    )


def _processor_s(device: MeasuredDevice, cycle: Cycle, vector: int) -> float:
    """Seconds of one end's processor for a message and its answers."""
    messages = 1 + cycle.answers
    return messages * (device.byte_s * vector + device.message_s)
