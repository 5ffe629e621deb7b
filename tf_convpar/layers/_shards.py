"""The values that users may give for `split=` and `shards=`."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout

SPLITS = ("filters", "samples")
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
            makes all feature maps of some samples; kernels travel.
        shards: One number per device, not negative and not all 0; None for
            equal parts.

    Raises:
        ValueError: `by` is neither, or `shards` are no such numbers.
    """

    by: str = "filters"
    shards: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.by not in SPLITS:
            raise ValueError(
                f"Expected `split` to be one of {SPLITS} or None. Received: "
                f"split={self.by!r}."
            )
        object.__setattr__(self, "shards", validate_shards(self.shards))

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
        return resolve_shards(self.shards, filters, devices)

    def shares(self, devices: int) -> tuple[int, ...]:
        """Each device's share of the samples, as whole numbers."""
        shards = self.shards or (1,) * devices
        if all(isinstance(n, int) for n in shards):
            return tuple(int(n) for n in shards)
        return resolve_shards(shards, _PARTS, devices)


def held(
    kind: type[_Kind],
    counts: Sequence[int],
    devices: Sequence[str],
    owner: str,
    wire: str | None,
) -> _Kind | None:
    """A layout with a count per device; None if the owner holds everything.

    With more counts than devices, a device gets several shards in turn.
    """
    pairs = [(devices[i % len(devices)], n) for i, n in enumerate(counts) if n]
    names, sizes = zip(*pairs, strict=True)
    if set(names) == {owner}:
        return None
    return kind(owner, names, sizes, wire=wire)


def validate_shards(shards: Any) -> tuple[int | float, ...] | None:
    """Checks `shards=` and converts it to plain numbers.

    Returns:
        A tuple of plain numbers, or None if `shards` is None.

    Raises:
        ValueError: `shards` are not numbers, or one is negative or not finite,
            or all are 0.
    """
    if shards is None:
        return None
    if not isinstance(shards, Sequence) or isinstance(shards, str):
        shards = list(shards) if hasattr(shards, "__iter__") else [shards]
    good = all(
        isinstance(s, numbers.Real)
        and not isinstance(s, bool)
        and math.isfinite(s)
        and float(s) >= 0
        for s in shards
    )
    if not good or not shards or not sum(shards):
        raise ValueError(
            "Expected `shards` to be one number per device, none negative and "
            "not all 0: kernel counts such as (300, 200), or weights such as "
            f"(3, 2) or (2.5, 1.0). Received: shards={shards!r}."
        )
    return tuple(
        int(s) if isinstance(s, numbers.Integral) else float(s) for s in shards
    )


def resolve_shards(
    shards: Sequence[float] | None, filters: int, devices: int
) -> tuple[int, ...]:
    """Kernels per shard, by largest remainder; equal shards for None.

    ```python
    resolve_shards((300, 200), 500, devices=2)  # (300, 200): counts
    resolve_shards((3, 1), 8, devices=2)  # (6, 2): ratios
    resolve_shards((3, 1, 2), 11, devices=3)  # (5, 2, 4): weights
    resolve_shards(None, 8, devices=3)  # (3, 3, 2)
    ```
    """
    weights = shards or [1] * devices
    total = math.fsum(weights)
    exact = [filters * w / total for w in weights]
    counts = [math.floor(e) for e in exact]
    by_remainder = sorted(
        range(len(weights)), key=lambda i: (counts[i] - exact[i], i)
    )
    for i in by_remainder[: filters - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
