"""Predicts methods whose replicas exchange weights or gradients all at once.

Messages are the ones that replicas send when they run, from `placement`:
pieces and their trees for SyncSGD, coded messages for DiLoCo.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import keras
import numpy as np

from tf_convpar.placement import BLOCK
from tf_convpar.placement import Messages
from tf_convpar.placement import copy_pairs
from tf_convpar.placement import exchange_messages
from tf_convpar.placement import fragment_values
from tf_convpar.placement import gradient_pieces
from tf_convpar.placement import piece_sizes
from tf_convpar.placement import sum_pairs
from tf_convpar.placement import wire_bytes
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._interfaces import Interfaces
from tf_convpar.planner._replica_times import WIDTH
from tf_convpar.planner._replica_times import ReplicaTimes
from tf_convpar.planner._tree_times import TreeTimes
from tf_convpar.planner._ways_to_train import ONE_DEVICE
from tf_convpar.planner._ways_to_train import OWN_MOMENTS
from tf_convpar.planner._ways_to_train import OWN_STEPS
from tf_convpar.planner._ways_to_train import REPLICAS
from tf_convpar.planner._ways_to_train import Arguments
from tf_convpar.planner._ways_to_train import Way
from tf_convpar.sharding import Graph

# How often an exchange of DiLoCo goes over the weights of its fragment: their
# difference, the sum over replicas, the outer step, and the move to the result.
_PASSES_OF_AN_EXCHANGE = 4
# As often as it goes over them again to code and decode, where fewer bits than
# float32 travel; so does a step of SyncSGD. The ops took half of an update by
# SGD with momentum (3.9 and 7.4 ns a weight, on one processor); not to promise
# too much, a whole one is counted.
_PASSES_OF_CODING = 1


def normalizes(graph: Graph) -> bool:
    """Whether a layer normalizes by the moments of a batch."""
    return any(
        isinstance(call.layer, keras.layers.BatchNormalization)
        and call.layer.trainable
        for call in graph.calls
    )


def beside_backward(
    forward: float, backward: float, exchange: float, last: float
) -> float:
    """Seconds of a step whose gradients travel while others are computed.

    ```python
    beside_backward(1.0, 2.0, 0.8, 0.1)  # 3.1: all but the last is hidden
    beside_backward(1.0, 2.0, 5.0, 0.1)  # 6.0
    ```

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of the backward pass, with what travels beside it.
        exchange: Seconds of the exchange, there and back.
        last: Seconds of the exchange that no computing can hide.
    """
    return forward + max(backward, exchange - last) + last


def sync_sgd(replicas: ReplicaTimes, graph: Graph, arguments: Arguments) -> Way:
    """SyncSGD: pieces of the gradient are added, stepped, and sent to all."""
    devices, batches = replicas.waiting(replicas.calibration.batch)
    names = [device.name for device in devices]
    sizes, owners = gradient_pieces(replicas.weight_sizes, WIDTH, names)
    nbytes = [wire_bytes(arguments.wire, size) for size in sizes]
    legs = exchange_messages(names, owners, nbytes)
    interfaces = Interfaces(replicas.calibration.links)
    # The first weight's gradient is ready last: nothing computes beside it.
    begins = np.cumsum([0, *sizes[:-1]])
    unhidden = sum(
        size
        for size, begin in zip(sizes, begins, strict=True)
        if begin < replicas.weight_sizes[0]
    ) / sum(sizes)
    busy = sum(interfaces.busy(leg) for leg in legs)
    last = sum(map(interfaces.latency, legs)) + unhidden * busy
    steps = []
    for device, batch in zip(devices, batches, strict=True):
        forward, backward = replicas.passes(device, batch)
        backward += _passes_of_coding(arguments) * replicas.update(device)
        backward += (1 - unhidden) * _held(device, legs, len(sizes) - 1)
        exchange = last + (1 - unhidden) * busy
        steps.append(beside_backward(forward, backward, exchange, last))
    updates = [
        device.update_s
        * sum(
            size
            for size, owner in zip(sizes, owners, strict=True)
            if owner == device.name
        )
        for device in devices
    ]
    numbers = OWN_MOMENTS if normalizes(graph) else ONE_DEVICE
    step = max(steps) + max(updates)
    return _way("SyncSGD", names, batches, step, _received(legs), numbers)


def sync_easgd(replicas: ReplicaTimes) -> Way:
    """SyncEASGD 3: weights travel while gradients are computed."""
    devices, batches = replicas.waiting(replicas.calibration.batch)
    names = [device.name for device in devices]
    vector = WIDTH * replicas.weights
    times = TreeTimes(replicas.calibration.links, vector)
    step = max(
        *(
            replicas.gradient(device)(batch) + delay
            for device, batch, delay in zip(
                devices, batches, times.delays(devices), strict=True
            )
        ),
        times.seconds(sum_pairs(names, names[0])),
        times.seconds(copy_pairs(names, names[0])),
    )
    # The optimizer's step, and the centre's pull.
    step += 2 * max(map(replicas.update, devices))
    received = times.received(names, names[0])
    return _way("SyncEASGD", names, batches, step, received, OWN_STEPS)


def diloco(replicas: ReplicaTimes, arguments: Arguments) -> Way:
    """DiLoCo: many steps of each by itself, then an exchange."""
    devices, batches = replicas.waiting(replicas.calibration.batch)
    names = [device.name for device in devices]
    length = fragment_values(replicas.weights, arguments.fragments)
    pieces = piece_sizes(length, len(devices), BLOCK)
    nbytes = [wire_bytes(arguments.wire, size) for size in pieces]
    legs = exchange_messages(names, names, nbytes)
    interfaces = Interfaces(replicas.calibration.links)
    travels = sum(interfaces.seconds(leg) for leg in legs)
    between = arguments.every // arguments.fragments
    learns = [
        between * (replicas.gradient(device)(batch) + replicas.update(device))
        for device, batch in zip(devices, batches, strict=True)
    ]
    if arguments.fragments > 1:
        # A fragment travels until the next one leaves.
        held = [_held(device, legs) for device in devices]
        learns = [a + b for a, b in zip(learns, held, strict=True)]
        seconds = max(*learns, travels)
    else:
        seconds = max(learns) + travels
    slowest = max(device.update_s for device in devices)
    passes = _PASSES_OF_AN_EXCHANGE + _passes_of_coding(arguments)
    seconds += passes * length * slowest
    received = round(_received(legs) / between)
    step = seconds / between
    return _way("DiLoCo", names, batches, step, received, OWN_STEPS)


def _passes_of_coding(arguments: Arguments) -> int:
    """How often an exchange goes over the weights to code and decode them."""
    return 0 if arguments.wire == "float32" else _PASSES_OF_CODING


def _way(
    method: str,
    names: Sequence[str],
    batches: Sequence[int],
    step: float,
    received: int,
    numbers: str,
) -> Way:
    groups = tuple((name,) for name in names)
    return Way(
        REPLICAS, method, groups, tuple(batches), step, received, numbers
    )


def _held(
    device: MeasuredDevice, legs: Sequence[Messages], parts: int = 1
) -> float:
    """Seconds by which messages hold up a device's computing.

    Args:
        device: The device.
        legs: Bytes from one device to another.
        parts: Number of messages between each two devices.
    """
    return sum(
        device.byte_s * n + device.message_s * parts
        for leg in legs
        for pair, n in leg.items()
        if device.name in pair
    )


def _received(legs: Sequence[Messages]) -> int:
    """Bytes into the device that receives most."""
    totals: collections.Counter[str] = collections.Counter()
    for leg in legs:
        for (_, target), n in leg.items():
            totals[target] += n
    return max(totals.values(), default=0)
