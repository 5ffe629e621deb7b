"""The values that users may give for `split=` and `shards=`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout
from tf_convpar.plans import CHIEF
from tf_convpar.plans import check_shares
from tf_convpar.plans import whole_shares

SPLITS = ("filters", "samples", CHIEF)
# The number of parts in which samples are given out if `shards` are fractions.
_PARTS = 1000
_Kind = TypeVar("_Kind", Layout, SampleLayout)


@dataclasses.dataclass(frozen=True)
class Split:
    """The way in which the work of a layer is cut.

    ```python
    Split("samples", (3, 1))  # the first device gets 3 samples of 4
    ```

    Args:
        by: `"filters"`: each device has some of the filters, and makes their
            feature maps of all samples; feature maps travel. `"samples"`: each
            makes all feature maps of some samples; kernels travel. `"chief"`:
            nothing is cut, and the chief has all of it.
        shards: One number per device, not negative and not all 0; None for
            equal parts.

    Raises:
        ValueError: `by` is none of these, or `shards` are no such numbers, or
            are given for the chief.
    """

    by: str = "filters"
    shards: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.by not in SPLITS:
            raise ValueError(
                f"Expected `split` to be one of {SPLITS} or None. Received: "
                f"split={self.by!r}."
            )
        object.__setattr__(self, "shards", check_shares("shards", self.shards))
        if self.by == CHIEF and self.shards is not None:
            raise ValueError(
                f"Expected no `shards` with split={CHIEF!r}, which leaves a "
                f"layer whole. Received: shards={self.shards}."
            )

    @classmethod
    def of(cls, value: Any) -> Split:
        """The split of a layer, from what a plan says of it.

        ```python
        Split.of((3, 1))  # filters
        Split.of("samples")  # equal shares
        Split.of({"split": "samples", "shards": (3, 1)})
        ```

        None stands for equal shards of filters.

        Raises:
            ValueError: `value` is none of these.
        """
        if isinstance(value, Split):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            return cls("filters", value)
        unknown = set(value) - {"split", "shards"}
        if unknown:
            raise ValueError(
                "Expected what a plan says of a layer to have 'split' and "
                f"'shards'. Received: {dict(value)}."
            )
        return cls(value.get("split") or "filters", value.get("shards"))

    def counts(self, filters: int, devices: int) -> tuple[int, ...]:
        """The number of filters of each device."""
        return whole_shares(self.shards, filters, devices)

    def shares(self, devices: int) -> tuple[int, ...]:
        """Each device's share of the samples, as whole numbers."""
        shards = self.shards or (1,) * devices
        if all(isinstance(n, int) for n in shards):
            return tuple(int(n) for n in shards)
        return whole_shares(shards, _PARTS, devices)


def layout_of_counts(
    kind: type[_Kind],
    counts: Sequence[int],
    devices: Sequence[str],
    owner: str,
    wire: str | None,
) -> _Kind | None:
    """A layout of counts per device; None if the owner holds everything.

    With more counts than devices, a device gets several shards in turn.
    """
    pairs = [(devices[i % len(devices)], n) for i, n in enumerate(counts) if n]
    names, sizes = zip(*pairs, strict=True)
    if set(names) == {owner}:
        return None
    return kind(owner, names, sizes, wire=wire)
