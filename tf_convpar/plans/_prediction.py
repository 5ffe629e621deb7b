"""A step as it should go: who is busy when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

FORWARD = "forward"
BACKWARD = "backward"


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that keeps a device or a link busy.

    Attributes:
        where: The device, or `"source -> target"`.
        what: `"compute"`, `"send"` or `"join"`; `"rest"` for other layers.
        layer: The convolution; empty for the rest.
        phase: `"forward"` or `"backward"`.
        start: Seconds since the step began.
        end: Likewise.
    """

    where: str
    what: str
    layer: str
    phase: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step as it should go.

    Attributes:
        step_s: Its seconds.
        spans: Who is busy when.
        sent_bytes: Over each link, by `"source -> target"`.
    """

    step_s: float
    spans: tuple[Span, ...]
    sent_bytes: Mapping[str, int]

    def busy(self) -> dict[str, float]:
        """Seconds in which each device or link has something to do."""
        seconds: dict[str, float] = {}
        for span in self.spans:
            seconds[span.where] = (
                seconds.get(span.where, 0.0) + span.end - span.start
            )
        return seconds

    def received(self) -> dict[str, int]:
        """Bytes into each device."""
        found: dict[str, int] = {}
        for link, count in self.sent_bytes.items():
            _, target = link.split(" -> ")
            found[target] = found.get(target, 0) + count
        return found


def busiest(prediction: Prediction, *, links: bool) -> tuple[str, float] | None:
    """The device or link with the most to do, and its seconds.

    None if nothing is sent.
    """
    busy = {
        where: seconds
        for where, seconds in prediction.busy().items()
        if (" -> " in where) == links
    }
    if not busy:
        return None
    where = max(busy, key=busy.__getitem__)
    return where, busy[where]
