"""What moves when a tensor is to lie elsewhere: pure functions, no tensors.

`everywhere`, `apart` and `ShardedTensor.joined` do move tensors. Code that
counts their bytes, or predicts their seconds, asks these functions.
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

# Where a tensor lies: in shards (a layout), whole on the owner (None), or whole
# on each of some devices (their names).
Place: TypeAlias = AnyLayout | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Move:
    """A tensor that is to lie elsewhere.

    ```python
    # The kernel of a layer that is split by samples.
    Move((3, 3, 64, 128), layout, layout.devices, layout.owner).links()
    ```

    Attributes:
        shape: Shape of the whole tensor.
        lies: Place where it is. If several devices each have a whole one,
            these are terms of a sum.
        wanted: Place where it is needed.
        owner: The chief's device.
        width: Bytes of a number while it travels.
        returns: Whether a gradient of the same size returns.
        packed: Whether it is a weight that travels with others, in a pack.
    """

    shape: tuple[int, ...]
    lies: Place
    wanted: Place
    owner: str
    width: int = 4
    returns: bool = True
    packed: bool = False

    def links(self) -> Mapping[tuple[str, str], int]:
        """Bytes from each device to each other one, gradients included."""
        there = self.numbers()
        return self._both_ways({k: self.width * n for k, n in there.items()})

    def messages(self) -> Mapping[tuple[str, str], int]:
        """Tensors from each device to each other one, gradients included."""
        there = self.numbers()
        return self._both_ways({k: 1 for k, n in there.items() if n})

    def _both_ways(
        self, there: Mapping[tuple[str, str], int]
    ) -> Mapping[tuple[str, str], int]:
        found = collections.Counter(there)
        if self.returns:
            found.update({(b, a): n for (a, b), n in there.items()})
        return found

    def numbers(self) -> Mapping[tuple[str, str], int]:
        """The amount of numbers that go from each device to each other one.

        Every device sends every other one the part that it has and that needs.
        A gradient that returns is not counted.
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
    """Whether a tensor has to be joined on the owner and cut anew there."""
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


# A part of a tensor: where it begins and ends on each axis.
_Box: TypeAlias = Sequence[tuple[int, int]]


def _regions(
    place: Place, shape: Sequence[int], owner: str
) -> list[tuple[str, _Box]]:
    """The part of a tensor that each device has, or needs."""
    whole = [(0, n) for n in shape]
    if place is None:
        return [(owner, whole)]
    if isinstance(place, tuple):
        return [(device, whole) for device in place]
    if isinstance(place, SampleLayout):
        bounds: Sequence[int] = place.bounds(shape[0])
    else:
        # Flattened pixels are only a factor of the channels: what each device
        # has is counted as if its channels of all pixels lay side by side.
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
    """The amount of numbers that are in both parts."""
    return math.prod(
        max(0, min(end, other_end) - max(begin, other_begin))
        for (begin, end), (other_begin, other_end) in zip(a, b, strict=True)
    )
