"""Times of a sum or a copy of one vector along a tree of devices."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tf_convpar.placement import copy_pairs
from tf_convpar.placement import sum_pairs
from tf_convpar.planner._calibration import MeasuredDevice
from tf_convpar.planner._link import Link


class TreeTimes:
    """Messages of one vector between devices.

    Args:
        links: Links between them.
        bytes_: Bytes of the vector.
    """

    def __init__(self, links: Sequence[Link], bytes_: int) -> None:
        self._links = {(k.source, k.target): k for k in links}
        self._bytes = bytes_

    def seconds(self, pairs: Sequence[tuple[str, str]]) -> float:
        """Seconds until all have arrived, each when its sender is ready.

        An interface has one message at a time in each direction.
        """
        out: dict[str, float] = collections.defaultdict(float)
        into: dict[str, float] = collections.defaultdict(float)
        for source, target in pairs:
            link = self._links[source, target]
            # A sender first receives all that it waits for.
            begin = max(out[source], into[source], into[target])
            end = begin + link.latency_s + self._bytes / link.bytes_per_s
            out[source] = into[target] = end
        return max(into.values(), default=0.0)

    def received(self, names: Sequence[str], root: str) -> int:
        """Bytes into the device that receives most."""
        pairs = [*sum_pairs(names, root), *copy_pairs(names, root)]
        counts = collections.Counter(target for _, target in pairs)
        return self._bytes * max(counts.values(), default=0)

    def delays(self, devices: Sequence[MeasuredDevice]) -> list[float]:
        """Seconds by which messages hold up each device's computing."""
        names = [device.name for device in devices]
        pairs = [*sum_pairs(names, names[0]), *copy_pairs(names, names[0])]
        return [
            sum(device.name in pair for pair in pairs)
            * (device.byte_s * self._bytes + device.message_s)
            for device in devices
        ]
