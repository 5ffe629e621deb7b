"""Times of replicas, which compute the whole model on samples of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from tf_convpar.planner import work_keys
from tf_convpar.planner._calibration import PASSES
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.plans import apportioned
from tf_convpar.plans import even_shares
from tf_convpar.plans import sizes_to_time
from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph

# Bytes of one number of a weight.
WIDTH = 4


class ReplicaTimes:
    """Replicas on some devices, and what each of them computes.

    Args:
        graph: Graph of the model.
        calibration: Measurements of it on the devices.
        names: Names of the devices that can have a replica.

    Attributes:
        calibration: The measurements.
        devices: Those of the devices.
        weight_sizes: Numbers of each weight that is learned.
        weights: Numbers of all of them.
    """

    def __init__(
        self, graph: Graph, calibration: Calibration, names: Sequence[str]
    ) -> None:
        self.calibration = calibration
        self.devices = [d for d in calibration.devices if d.name in names]
        self.weight_sizes = weights_of(graph.calls)
        self.weights = sum(self.weight_sizes)
        self._keys = [
            work_keys.key(graph, call)
            for call in graph.calls
            if call.layer is not None
        ]

    def passes(
        self, device: MeasuredDevice, samples: float
    ) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass of `samples`."""
        forward, backward = (
            sum(
                device.works[key].at(which, samples, on_shards=False)
                for key in self._keys
            )
            for which in PASSES
        )
        return forward, backward

    def gradient(self, device: MeasuredDevice) -> Callable[[float], float]:
        """Function from a number of samples to seconds of their gradient."""
        return lambda samples: sum(self.passes(device, samples))

    def update(self, device: MeasuredDevice) -> float:
        """Seconds in which a device goes over all weights once."""
        return self.weights * device.update_s

    def waiting(self, total: int) -> tuple[list[MeasuredDevice], list[int]]:
        """Devices and batches of replicas that wait for one another.

        As in `fit`, a device that would hold up all others is left out.
        """
        short, long = (
            [[self.gradient(device)(size)] for device in self.devices]
            for size in sizes_to_time(total, len(self.devices))
        )
        shares = even_shares(short, long, total)
        kept = [i for i, share in enumerate(shares) if share]
        batches = apportioned(total, [shares[i] for i in kept])
        return [self.devices[i] for i in kept], batches

    def equal(self, total: int) -> list[int]:
        """Batches of replicas that do not wait for one another."""
        return apportioned(total, [1.0] * len(self.devices))


def weights_of(calls: Iterable[Call]) -> list[int]:
    """Numbers of each weight that calls share and that is learned, in order."""
    layers = {id(call.layer): call.layer for call in calls}.values()
    return [
        math.prod(weight.shape)
        for layer in layers
        for weight in getattr(layer, "trainable_weights", ())
    ]
