"""Bytes and messages of moving a tensor to another place, without moving it.

`everywhere`, `in_shards` and `ShardedTensor.joined` do move tensors. Code that
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
    """A tensor that is to be moved from one place to another.

    ```python
    # The kernel of a layer that is split by samples.
    Move((3, 3, 64, 128), layout, layout.devices, layout.owner).links()
    ```

    Attributes:
        shape: Shape of the whole tensor.
        place: Place where it is. If several devices each have a whole one,
            these are terms of a sum.
        wanted: Place where it is needed.
        owner: The chief's device.
        width: Bytes of a number while it travels.
        returns: Whether a gradient of the same size returns.
        packed: Whether it is a weight that travels with others, in a pack.
    """

    shape: tuple[int, ...]
    place: Place
    wanted: Place
    owner: str
    width: int = 4
    returns: bool = True
    packed: bool = False

    def links(self) -> Mapping[tuple[str, str], int]:
        """Bytes from each device to each other one, gradients included."""
        numbers = self.numbers()
        return self._both_ways({k: self.width * n for k, n in numbers.items()})

    def messages(self) -> Mapping[tuple[str, str], int]:
        """Tensors from each device to each other one, gradients included."""
        numbers = self.numbers()
        return self._both_ways({k: 1 for k, n in numbers.items() if n})

    def _both_ways(
        self, one_way: Mapping[tuple[str, str], int]
    ) -> Mapping[tuple[str, str], int]:
        counts = collections.Counter(one_way)
        if self.returns:
            counts.update({(b, a): n for (a, b), n in one_way.items()})
        return counts

    def numbers(self) -> Mapping[tuple[str, str], int]:
        """The amount of numbers that go from each device to each other one.

        Every device sends every other one the part that it has and that needs.
        A gradient that returns is not counted.
        """
        numbers: dict[tuple[str, str], int] = collections.Counter()
        if passes_owner(self.place, self.wanted):
            for half in (
                dataclasses.replace(self, wanted=None),
                dataclasses.replace(self, place=None),
            ):
                numbers.update(half.numbers())
            return numbers
        if _same_place(self.place, self.wanted):
            return numbers
        for source, part_there in _parts(self.place, self.shape, self.owner):
            needed: set[str] = set()
            for target, part_needed in _parts(
                self.wanted, self.shape, self.owner
            ):
                # A device that is named twice is sent one copy.
                copied = not isinstance(self.wanted, Layout | SampleLayout)
                if target == source or (copied and target in needed):
                    continue
                needed.add(target)
                numbers[source, target] += _overlap(part_there, part_needed)
        return numbers


def passes_owner(held_at: Place, wanted: Place) -> bool:
    """Whether a tensor has to be joined on the owner and cut anew there."""
    both = isinstance(held_at, Layout | SampleLayout) and isinstance(
        wanted, Layout | SampleLayout
    )
    if not both or _same_place(held_at, wanted):
        return False
    return not held_at.blocks == wanted.blocks == 1  # type: ignore[union-attr]


def _same_place(held_at: Place, wanted: Place) -> bool:
    if isinstance(held_at, Layout | SampleLayout):
        return isinstance(wanted, Layout | SampleLayout) and held_at.matches(
            wanted
        )
    return held_at is None and wanted is None


# A part of a tensor: where it begins and ends on each axis.
_Box: TypeAlias = Sequence[tuple[int, int]]


def _parts(
    place: Place, shape: Sequence[int], owner: str
) -> list[tuple[str, _Box]]:
    """The part of a tensor that each device has, or needs."""
    full = [(0, n) for n in shape]
    if place is None:
        return [(owner, full)]
    if isinstance(place, tuple):
        return [(device, full) for device in place]
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
        (device, [*full[:axis], part, *full[axis + 1 :]])
        for device, part in zip(
            place.devices, itertools.pairwise(bounds), strict=True
        )
    ]


def _overlap(a: _Box, b: _Box) -> int:
    """The amount of numbers that are in both parts."""
    return math.prod(
        max(0, min(end, other_end) - max(begin, other_begin))
        for (begin, end), (other_begin, other_end) in zip(a, b, strict=True)
    )
