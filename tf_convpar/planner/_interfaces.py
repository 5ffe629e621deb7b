"""Times of transfers between devices, each of which has one interface."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from collections.abc import Mapping

from tf_convpar.planner._link import Link


class Interfaces:
    """The interfaces of devices, which receive while they send.

    ```python
    Interfaces(calibration.links).seconds({("a", "b"): 1000, ("a", "c"): 500})
    ```

    Args:
        links: All links.

    Attributes:
        links: The links, by source and target.
        out: Bytes a second that each device sends at most.
        into: Bytes a second that each device receives at most.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        self.links = {(k.source, k.target): k for k in links}
        self.out: dict[str, float] = collections.defaultdict(float)
        self.into: dict[str, float] = collections.defaultdict(float)
        for (source, target), link in self.links.items():
            rate = link.bytes_per_s
            self.out[source] = max(self.out[source], rate)
            self.into[target] = max(self.into[target], rate)

    def seconds(self, bytes_: Mapping[tuple[str, str], int]) -> float:
        """Time of bytes that travel between devices, all at once."""
        pairs = [pair for pair, n in bytes_.items() if n]
        return self.latency(pairs) + self.busy(bytes_)

    def latency(self, pairs: Iterable[tuple[str, str]]) -> float:
        """The largest latency of these links."""
        return max((self.links[p].latency_s for p in pairs), default=0.0)

    def busy(self, bytes_: Mapping[tuple[str, str], float]) -> float:
        """Time on the busiest link or interface, in either direction."""
        out: dict[str, float] = collections.defaultdict(float)
        into: dict[str, float] = collections.defaultdict(float)
        longest = 0.0
        for (source, target), n in bytes_.items():
            if n:
                out[source] += n / self.out[source]
                into[target] += n / self.into[target]
                rate = self.links[source, target].bytes_per_s
                longest = max(longest, n / rate)
        return max([longest, *out.values(), *into.values()])
