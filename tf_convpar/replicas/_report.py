"""Who did how much, and how old its news was."""

from __future__ import annotations

import collections
import dataclasses
import io
import os
import pathlib
import statistics
from collections.abc import Sequence

import numpy as np

from tf_convpar.files import replace
from tf_convpar.machines import short
from tf_convpar.replicas._arrivals import Arrival
from tf_convpar.units import seconds_text

# Okabe and Ito's colours, which colour-blind readers can tell apart too.
_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
)


@dataclasses.dataclass(frozen=True)
class ReplicaReport:
    """A replica's part in a training.

    Attributes:
        device: Name of its device.
        messages: Number of messages that the centre had from it.
        samples: From how many it has learned, since it last joined the others.
        share: The same, as a part of all replicas'.
        staleness: Number of others' messages between the centre's answer to
            this replica and the message that followed, by how often.
        seconds: Median seconds from answer to answer.
    """

    device: str
    messages: int
    samples: int
    share: float
    staleness: dict[int, int]
    seconds: float

    @property
    def mean_staleness(self) -> float:
        """Mean number of others' messages in between."""
        return (
            sum(age * n for age, n in self.staleness.items()) / self.messages
            if self.messages
            else 0.0
        )


class Report(tuple[ReplicaReport, ...]):
    """All replicas' parts, in their order; as text, a line for each.

    ```python
    method = AsyncEASGD(model)
    method.fit(x, y)
    print(method.report())
    method.report().draw("replicas.png")
    ```
    """

    def __str__(self) -> str:
        return "\n".join(
            f"{short(r.device)}: {r.share:.0%} of the samples, {r.messages} "
            f"messages, {r.mean_staleness:.1f} of others in between (at most "
            f"{max(r.staleness, default=0)}), {seconds_text(r.seconds)} each"
            for r in self
        )

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draws shares of samples, and how stale messages were.

        Args:
            path: The image to write, whole or not at all. Its ending says in
                which format; without an ending that is PNG.

        Raises:
            ValueError: The format is unknown.
            OSError: The file cannot be written.
        """
        from matplotlib.figure import Figure

        figure = Figure(
            figsize=(9, 2.2 + 0.3 * len(self)), layout="constrained"
        )
        shares, staleness = figure.subplots(1, 2, width_ratios=[1, 1.4])
        names = [short(r.device) for r in self]
        colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(self))]
        bars = shares.barh(names, [100 * r.share for r in self], color=colours)
        shares.bar_label(bars, fmt="%.0f %%", padding=3)
        shares.invert_yaxis()
        shares.set_xlabel("% of all samples")
        shares.margins(x=0.18)
        most = max((max(r.staleness, default=0) for r in self), default=0)
        wide = 0.8 / max(1, len(self))
        ages = np.arange(most + 1)
        for i, (replica, colour) in enumerate(zip(self, colours, strict=True)):
            parts = [
                100
                * replica.staleness.get(int(age), 0)
                / max(1, replica.messages)
                for age in ages
            ]
            where = ages + (i - (len(self) - 1) / 2) * wide
            staleness.bar(where, parts, wide, color=colour, label=names[i])
        staleness.set_xlabel("messages of others since the centre's answer")
        staleness.set_ylabel("% of the replica's messages")
        staleness.xaxis.get_major_locator().set_params(integer=True)
        for axes in (shares, staleness):
            axes.spines[["top", "right"]].set_visible(False)
        content = io.BytesIO()
        ending = pathlib.Path(path).suffix.lstrip(".") or "png"
        figure.savefig(content, format=ending, dpi=150)
        replace(path, content.getvalue())


def report(
    devices: Sequence[str],
    batches: Sequence[int],
    arrivals: Sequence[Arrival],
) -> Report:
    """The report of some arrivals.

    Args:
        devices: Names of the replicas' devices.
        batches: Samples for each of their messages.
        arrivals: The messages.
    """
    of_each = [
        [a for a in arrivals if a.replica == i] for i in range(len(devices))
    ]
    samples = [len(came) * b for came, b in zip(of_each, batches, strict=True)]
    return Report(
        ReplicaReport(
            device,
            len(came),
            n,
            n / max(1, sum(samples)),
            dict(
                sorted(collections.Counter(a.staleness for a in came).items())
            ),
            statistics.median([a.seconds for a in came] or [0.0]),
        )
        for device, came, n in zip(devices, of_each, samples, strict=True)
    )
