"""When replicas that meet seldom send which fragment, and when they use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tf_convpar.placement import check_rounds


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Fragments leave in turn, and arrive some steps later.

    ```python
    schedule = Schedule(every=8, fragments=2, delay=3)
    schedule.steps_left(4, sent_at=4)  # 3: what has left is used in step 7
    schedule.steps_left(7, None)  # 1: the next fragment leaves after step 8
    ```

    Positions are numbers of steps since training began.

    Args:
        every: Steps from one exchange of a weight to the next.
        fragments: In how many parts weights travel.
        delay: Steps that are made while a fragment travels.
    """

    every: int
    fragments: int
    delay: int

    @classmethod
    def of(cls, every: int, fragments: int, delay: int | None) -> Schedule:
        """The schedule of the arguments of `DiLoCo`.

        Args:
            every: As for `Schedule`.
            fragments: As for `Schedule`.
            delay: As for `Schedule`; None for all steps until the next
                fragment leaves, and for 0 where there is one.

        Raises:
            ValueError: `fragments` does not divide `every`, or the delay is
                longer than from one fragment to the next.
        """
        check_rounds(every, fragments)
        between = every // fragments
        if delay is None:
            delay = between if fragments > 1 else 0
        if not 0 <= delay <= between:
            raise ValueError(
                "Expected a delay of 0 up to every / fragments, when the next "
                f"fragment leaves: {between}. Received: delay={delay}."
            )
        return cls(every, fragments, delay)

    @property
    def between(self) -> int:
        """Steps from one fragment to the next."""
        return self.every // self.fragments

    def leaves(self, position: int) -> bool:
        """Whether a fragment leaves after so many steps."""
        return position % self.between == 0

    def arrives(self, position: int, sent_at: int) -> bool:
        """Whether what was sent is used after so many steps."""
        return position >= sent_at + self.delay

    def last(self, position: int) -> int:
        """The fragment that leaves after so many steps, or left last."""
        return (position // self.between - 1) % self.fragments

    def following(self, position: int) -> int:
        """The fragment that leaves next."""
        return position // self.between % self.fragments

    def steps_left(self, position: int, sent_at: int | None) -> int:
        """Steps until something leaves or arrives, at least one."""
        steps = self.between - position % self.between
        if sent_at is None or not self.delay:
            return steps
        return min(steps, max(1, sent_at + self.delay - position))


def steps_by_share(shares: Sequence[float], begin: int, end: int) -> list[int]:
    """Steps of each replica that are so many on average, from begin to end.

    ```python
    steps_by_share([4, 1, 1], 0, 10)  # [20, 5, 5]
    ```
    """
    weights = np.asarray(shares, float)
    every = weights / weights.sum() * len(weights)
    steps = np.rint(every * end) - np.rint(every * begin)
    return [int(own) for own in steps]
