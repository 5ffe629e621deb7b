"""What devices and links were measured to do with the layers of a model.

All times are seconds, all sizes bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tf_convpar.planner._link import Link

PASSES = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Work:
    """The times of a layer on one device.

    Attributes:
        samples: At which it was measured, with all filters; ascending.
        forward: Seconds for each of them.
        backward: Of both gradients, likewise.
        filters: Parts of its filters, of the most samples; ascending up to 1.
        forward_of: Seconds for each of them, as parts of those with all.
        backward_of: Likewise.
        on_shards: Seconds forward and backward of what devices compute of it
            on shards, as parts of those of the layer itself.
    """

    samples: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    filters: tuple[float, ...] = (1.0,)
    forward_of: tuple[float, ...] = (1.0,)
    backward_of: tuple[float, ...] = (1.0,)
    on_shards: tuple[float, ...] = (1.0, 1.0)

    def at(
        self,
        which: str,
        samples: float,
        filters: float = 1.0,
        on_shards: bool = True,
    ) -> float:
        """Seconds of a pass; 0 of nothing.

        Linear between what was measured, and beyond it on the line through
        the two nearest points, but never less than in proportion below the
        first.

        Args:
            which: `"forward"` or `"backward"`.
            samples: Of them.
            filters: A part of the filters.
            on_shards: Whether they lie in shards; the layer itself otherwise.
        """
        if samples <= 0 or filters <= 0:
            return 0.0
        seconds = _line(self.samples, getattr(self, which), samples)
        if on_shards:
            seconds *= self.on_shards[PASSES.index(which)]
        if filters == 1:
            return seconds
        part = _line(self.filters, getattr(self, f"{which}_of"), filters)
        return seconds * part


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    if len(xs) == 1:
        return ys[0] * x / xs[0]
    if xs[0] <= x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    a, b = (0, 1) if x < xs[0] else (-2, -1)
    slope = max(0.0, (ys[b] - ys[a]) / (xs[b] - xs[a]))
    if x > xs[-1]:
        return ys[-1] + slope * (x - xs[-1])
    return max(ys[0] * x / xs[0], ys[0] - slope * (xs[0] - x))


@dataclasses.dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: TensorFlow's: `"/job:worker/replica:0/task:0/device:CPU:0"`.
        works: Times of each layer, by its key (`_works.key`).
        update_s: Of the optimizer, for one parameter.
        byte_s: By which a byte that it sends or receives holds up what it
            computes.
        message_s: By which each message that it sends or receives does,
            however small.
        memory_bytes: What it can give to the model; None if no limit.
    """

    name: str
    works: Mapping[str, Work]
    update_s: float = 0.0
    byte_s: float = 0.0
    message_s: float = 0.0
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Everything that a plan goes by, beside the model.

    Attributes:
        model: A hash of its layers and their shapes.
        batch: Samples of a step.
        devices: The first is the chief's.
        links: Both directions between any two.
        slots: Numbers that the optimizer keeps for each parameter.
        facts: Of the environment in which it was measured, for readers.
    """

    model: str
    batch: int
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    slots: int = 0
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def link(self, source: str, target: str) -> Link:
        """From one device to another."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise ValueError(
            f"Expected a link from {source} to {target} in the calibration. "
            f"Received: {[(k.source, k.target) for k in self.links]}."
        )
