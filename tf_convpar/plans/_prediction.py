"""`Prediction`: a step as it should go, and who is busy when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_convpar.files import Checked
from tf_convpar.files import Name
from tf_convpar.files import Quantity
from tf_convpar.files import Unexpected

FORWARD = "forward"
BACKWARD = "backward"


@dataclasses.dataclass(frozen=True)
class PredictedSpan(Checked):
    """A time in which a device or a link is busy.

    Attributes:
        where: Name of the device; `"source -> target"` for a link.
        what: `"compute"` for convolutions, `"send"`, `"join"`, or `"rest"` for
            other layers.
        layer: Name of the convolution; empty for the rest.
        phase: `"forward"` or `"backward"`.
        start: Time of the start, in seconds since the step began.
        end: Time of the end, in seconds since the step began.
    """

    where: Name
    what: Name
    layer: str
    phase: str
    start: Quantity
    end: Quantity

    def check(self) -> None:
        """Nothing ends before it starts."""
        if self.end < self.start:
            raise Unexpected("an end that is not before the start", "end")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A step as it should go.

    Attributes:
        step_s: Seconds of the step.
        spans: What keeps each device and link busy, and when.
        sent_bytes: Bytes sent over each link, by `"source -> target"`.
    """

    step_s: float
    spans: tuple[PredictedSpan, ...]
    sent_bytes: Mapping[str, int]

    def taking(self, step_s: float) -> Prediction:
        """The same step, stretched to take `step_s` seconds."""
        longer = step_s / self.step_s
        spans = tuple(
            dataclasses.replace(
                span, start=longer * span.start, end=longer * span.end
            )
            for span in self.spans
        )
        return dataclasses.replace(self, step_s=step_s, spans=spans)

    def busy(self) -> dict[str, float]:
        """Busy seconds of each device and link, by name."""
        seconds: dict[str, float] = {}
        for span in self.spans:
            seconds[span.where] = (
                seconds.get(span.where, 0.0) + span.end - span.start
            )
        return seconds

    def received(self) -> dict[str, int]:
        """Bytes that each device receives, by name."""
        totals: dict[str, int] = {}
        for link, count in self.sent_bytes.items():
            _, target = link.split(" -> ")
            totals[target] = totals.get(target, 0) + count
        return totals


def busiest(prediction: Prediction, *, links: bool) -> tuple[str, float] | None:
    """Name of the busiest device or link, and its busy seconds.

    It is None if no device, or no link, has anything to do.

    Args:
        prediction: The predicted step.
        links: True for the busiest link, False for the busiest device.
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
