"""Links between devices, with their measured rates and latencies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence

from tf_convpar.files import Checked
from tf_convpar.files import Name
from tf_convpar.files import Quantity
from tf_convpar.files import Rate
from tf_convpar.files import Unexpected


@dataclasses.dataclass(frozen=True)
class Link(Checked):
    """One direction of the link between two devices.

    ```python
    Link("/device:CPU:0", "/device:CPU:1", bytes_per_s=1.25e9, latency_s=1e-4)
    ```

    Attributes:
        source: Name of the device that sends.
        target: Name of the device that receives.
        bytes_per_s: Rate of a large tensor, in bytes per second.
        latency_s: Seconds that a small tensor takes, one way.
    """

    source: Name
    target: Name
    bytes_per_s: Rate
    latency_s: Quantity


def link_of(links: Sequence[Link], source: str, target: str) -> Link:
    """Returns the link from one device to another.

    Raises:
        ValueError: There is none.
    """
    for link in links:
        if (link.source, link.target) == (source, target):
            return link
    raise ValueError(
        f"Expected a link from {source} to {target} in the calibration. "
        f"Received {len(links)} links: {[(k.source, k.target) for k in links]}."
    )


def check_links(
    links: Sequence[Link],
    names: Sequence[str],
    needed: Iterable[tuple[str, str]],
) -> None:
    """Checks the field `links` of a calibration.

    Args:
        links: Links to check.
        names: Names of all devices.
        needed: Sources and targets of the links that must be there.

    Raises:
        Unexpected: A link is missing, is there twice, or is of no two devices.
    """
    seen = set()
    for i, link in enumerate(links):
        for end in ("source", "target"):
            if getattr(link, end) not in names:
                what = f"one of the devices, {', '.join(names)},"
                raise Unexpected(what, "links", i, end)
        if link.source == link.target:
            what = "another device than the link's source"
            raise Unexpected(what, "links", i, "target")
        ends = link.source, link.target
        if ends in seen:
            twice = f"{' -> '.join(ends)} a second time"
            raise Unexpected("each link once", "links", i, received=twice)
        seen.add(ends)
    for a, b in needed:
        if (a, b) not in seen:
            raise Unexpected(
                f"a link from {a} to {b}",
                "links",
                received=f"{len(seen)} links without it",
            )
