"""What moves when a tensor is to lie elsewhere: pure functions, no tensors.

`everywhere`, `apart` and `joined` do it; whoever counts bytes, or predicts
what they take, reads it here.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeAlias

from tf_convpar.placement._layout import AnyLayout
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._layout import SampleLayout

# In shards; whole on the owner (None); or whole on each of some devices.
Place: TypeAlias = AnyLayout | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Move:
    """A tensor that is to lie elsewhere.

    ```python
    # The kernel of a layer that is split by samples.
    Move((3, 3, 64, 128), layout, layout.devices, layout.owner).links()
    ```

    Attributes:
        shape: Of all of it.
        lies: Where it is. Whole on several devices are terms of a sum.
        wanted: Where it is needed.
        owner: The chief's device.
        width: Bytes of a number while it travels.
        returns: Whether a gradient of the same size returns.
    """

    shape: tuple[int, ...]
    lies: Place
    wanted: Place
    owner: str
    width: int = 4
    returns: bool = True

    def links(self) -> Mapping[tuple[str, str], int]:
        """Bytes from each device to each other, there and back."""
        found: dict[tuple[str, str], int] = collections.Counter()
        for (source, target), numbers in self.numbers().items():
            found[source, target] += self.width * numbers
            if self.returns:
                found[target, source] += self.width * numbers
        return found

    def numbers(self) -> Mapping[tuple[str, str], int]:
        """How many go from each device to each other.

        Every device sends every other one what that needs of what it has.
        """
        found: dict[tuple[str, str], int] = collections.Counter()
        if passes_owner(self.lies, self.wanted):
            for half in (
                dataclasses.replace(self, wanted=None),
                dataclasses.replace(self, lies=None),
            ):
                found.update(half.numbers())
            return found
        if _same(self.lies, self.wanted):
            return found
        for source, has in _regions(self.lies, self.shape, self.owner):
            needed: set[str] = set()
            for target, needs in _regions(self.wanted, self.shape, self.owner):
                # A device that is named twice is sent one copy.
                whole = not isinstance(self.wanted, Layout | SampleLayout)
                if target == source or (whole and target in needed):
                    continue
                needed.add(target)
                found[source, target] += _overlap(has, needs)
        return found


def passes_owner(lies: Place, wanted: Place) -> bool:
    """Whether it can only be joined, and cut anew."""
    both = isinstance(lies, Layout | SampleLayout) and isinstance(
        wanted, Layout | SampleLayout
    )
    if not both or _same(lies, wanted):
        return False
    return not lies.blocks == wanted.blocks == 1  # type: ignore[union-attr]


def _same(lies: Place, wanted: Place) -> bool:
    if isinstance(lies, Layout | SampleLayout):
        return isinstance(wanted, Layout | SampleLayout) and lies.matches(
            wanted
        )
    return lies is None and wanted is None


# Of each axis where it begins and ends.
_Box: TypeAlias = Sequence[tuple[int, int]]


def _regions(
    place: Place, shape: Sequence[int], owner: str
) -> list[tuple[str, _Box]]:
    """What each device has, or needs, of a tensor."""
    whole = [(0, n) for n in shape]
    if place is None:
        return [(owner, whole)]
    if isinstance(place, tuple):
        return [(device, whole) for device in place]
    if isinstance(place, SampleLayout):
        bounds: Sequence[int] = place.bounds(shape[0])
    else:
        # Pixels before channels are no matter: their number is a factor.
        times = shape[place.axis] // sum(place.sizes)
        ends = itertools.accumulate(place.sizes, initial=0)
        bounds = [times * end for end in ends]
    axis = place.axis % len(shape)
    return [
        (device, [*whole[:axis], own, *whole[axis + 1 :]])
        for device, own in zip(
            place.devices, itertools.pairwise(bounds), strict=True
        )
    ]


def _overlap(a: _Box, b: _Box) -> int:
    """Numbers in both."""
    return math.prod(
        max(0, min(end, other_end) - max(begin, other_begin))
        for (begin, end), (other_begin, other_end) in zip(a, b, strict=True)
    )
