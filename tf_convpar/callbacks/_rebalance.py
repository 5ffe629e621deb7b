"""`Rebalance`: shares follow the speeds of devices while a model trains."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import print_msg
from tf_convpar.callbacks.speeds import Speeds
from tf_convpar.machines import short
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import merge
from tf_convpar.sharding import relayout
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.timeline import note
from tf_convpar.units import interval

# Ratios of times between which a device counts as unchanged: measurements vary.
_USUAL = (0.8, 1.25)
# Number of looks that tell how fast a device is in the beginning.
_FIRST = 3
# After so many times `patience` looks with all devices as at first, shares go
# back even if that saves less than the margin.
_CALM = 4
# Steps after a change that are not timed, as they trace; and the fewest and the
# most steps whose median is the time of a step.
_TRACES, _FEWEST, _MOST = 2, 5, 50
# A device that was left out has a share again once so much of what made it
# slower is gone.
_GONE = 0.5
# A change that follows another one sooner than so many pauses doubles the next
# pause, up to a longest one in seconds.
_SOON, _LONGEST_S = 4, 3600.0


class Rebalance(keras.callbacks.Callback):
    """Moves shares away from devices that have become slower, and back.

    ```python
    model.fit(x, y, callbacks=[convpar.callbacks.Rebalance(every="10s")])
    ```

    Between two steps each device computes a small convolution, three times 20
    ms where it is as fast as in the beginning. Where other programs, heat or a
    quota have made one slower, the layers' shares of it are worth less by as
    much. If the convolutions of a step would take less with other shares,
    kernels and slots move there, between two steps; results stay the same. A
    device without which steps are sure to be shorter is left out: what it must
    receive and send does not shrink with its share of the kernels.

    A model that `plan="auto"` has split is planned again, by the measurements
    that it was planned by and the speeds of now, and moves if that is predicted
    to shorten the step. Otherwise shares go by those of the beginning. `fit`
    should begin while devices are as fast as when the model was planned. Once
    devices are as they were, so are the shares. As with `Elastic`, layers,
    optimizer and variables of the model are new objects afterwards.

    Args:
        every: Time between two looks: seconds, or text such as `"10s"`.
        margin: Part of the time of the convolutions that other shares must
            save; of the step, if the model was planned.
        patience: How many looks in a row must find so, of the same devices.
        cooldown: Time after a change in which there is no other, as for
            `every`; twice as long, up to an hour, each time that changes follow
            one another soon: where speeds change all the time, shares do not.

    Attributes:
        decisions: What was changed, the first change first.

    Raises:
        ValueError: A time, `margin` or `patience` is none, or the model was
            made in no scope of a ConvParallelStrategy.
    """

    def __init__(
        self,
        every: float | str = "10s",
        margin: float = 0.15,
        patience: int = 3,
        cooldown: float | str = "60s",
    ) -> None:
        super().__init__()
        self.every_s = interval("every", every)
        self.cooldown_s = interval("cooldown", cooldown)
        if not 0 < margin < 1:
            raise ValueError(
                "Expected `margin` to be a part of the time, between 0 and 1. "
                f"Received: margin={margin!r}."
            )
        if not (isinstance(patience, int) and patience > 0):
            raise ValueError(
                "Expected `patience` to be a number of looks, 1 or more. "
                f"Received: patience={patience!r}."
            )
        self.margin, self.patience = margin, patience
        self.decisions: list[Decision] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets what earlier looks found."""
        strategy = self.model.distribute_strategy
        if not isinstance(strategy, ConvParallelStrategy):
            raise ValueError(
                "Expected a model made in the scope of a ConvParallelStrategy, "
                f"whose devices share its layers. Received one of {strategy!r}."
            )
        self._strategy = strategy
        self._speeds = Speeds()
        # Seconds of each device in the first looks.
        self._first: dict[str, list[float]] = {}
        # The last looks, and how many in a row have found all as at first.
        self._looks: collections.deque[dict[str, float]] = collections.deque(
            maxlen=self.patience
        )
        self._calm, self._step = 0, 0
        # Seconds of the last steps with these shares, and of one in the
        # beginning; and how slow devices were that were left out.
        self._steps_s: collections.deque[float] = collections.deque(
            maxlen=_MOST
        )
        self._first_s: float | None = None
        self._left: dict[str, float] = {}
        self._since = 0
        self._looked = self._changed = -float("inf")
        self._pause_s = self.cooldown_s

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes when the step begins."""
        self._began = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Looks, if it is time; moves shares, if that has been found often."""
        now = time.monotonic()
        self._step += 1
        self._since += 1
        if self._since > _TRACES:
            self._steps_s.append(now - self._began)
        if now - self._looked < self.every_s:
            return
        try:
            slower = self._slower()
        except tf.errors.OpError:
            return  # A device is lost, which the next step finds out.
        self._looked = time.monotonic()
        self._looks.append(slower)
        self._calm = self._calm + 1 if set(slower.values()) == {1.0} else 0
        if self._calm and not self.decisions and len(self._steps_s) >= _FEWEST:
            self._first_s = statistics.median(self._steps_s)
        late = now - self._changed >= self._pause_s
        if late and len(self._looks) == self.patience:
            try:
                self._consider()
            except tf.errors.OpError:
                # A device is lost while shares move: the next step finds out.
                self._looks.clear()
                if self.model.train_function is None:
                    self.model.make_train_function()

    def _consider(self) -> None:
        """Moves shares, if that saves enough by all of the last looks."""
        devices = self._strategy.devices
        split = HowSplit.last(self.model, devices)
        assumed = {d: _inverse(split.speeds.get(d, 1.0)) for d in devices}
        slower = _agreed(self._looks, assumed)
        # Going back need not save the margin: a smaller loss would stay.
        back = slower != assumed and self._calm >= _CALM * self.patience
        left = {
            device: ratio
            for device, ratio in self._left.items()
            if slower.get(device, 1.0) - 1 > (1 - _GONE) * (ratio - 1)
        }
        before_s = split.time(slower, devices)
        if not before_s:
            return  # Nothing is split.
        other = _split_at(split, slower, left)
        saves = 1 - other.time(slower, devices) / before_s
        if not back and saves < self.margin:
            self._leave_out(split, slower, left)
            return
        # The whole step, where the devices and links were measured.
        planned = self._strategy.planner().saves(self.model, slower)
        saves = saves if planned is None else planned
        if back or saves >= self.margin:
            self._change(other, Decision(self._step, slower, saves, (*left,)))
            self._left = left
        else:
            self._changed = time.monotonic()
            self._looks.clear()

    def _leave_out(
        self,
        split: HowSplit,
        slower: Mapping[str, float],
        left: dict[str, float],
    ) -> None:
        """Leaves the slowest device out, if steps are sure to be shorter.

        A step grows at most by the same factor as its convolutions, since
        nothing else in it grows.
        """
        known = self._first_s is not None and len(self._steps_s) >= _FEWEST
        slowed = {d: r for d, r in slower.items() if r > 1 and d not in left}
        if not known or not slowed or split.planned:
            return
        slowest = max(slowed, key=lambda device: slowed[device])
        left = left | {slowest: slowed[slowest]}
        if len(left) == len(slower):
            return
        other, devices = _split_at(split, slower, left), self._strategy.devices
        first = dataclasses.replace(split, speeds={})
        longer = other.time(slower, devices) / first.time({}, devices)
        at_most_s = longer * (self._first_s or 0.0)
        saves = 1 - at_most_s / statistics.median(self._steps_s)
        if saves >= self.margin:
            self._change(other, Decision(self._step, slower, saves, (*left,)))
            self._left = left

    def _slower(self) -> dict[str, float]:
        """How many times slower each device is than in the beginning."""
        ratios = {}
        for device in self._strategy.devices:
            now = self._speeds.seconds(device)
            first = self._first.setdefault(device, [])
            if len(first) < _FIRST:
                first.append(now)
            ratio = now / statistics.median(first)
            if len(first) < _FIRST:
                ratio = 1.0
            usual = _USUAL[0] < ratio < _USUAL[1]
            ratios[device] = 1.0 if usual else ratio
        return ratios

    def _change(self, split: HowSplit, decision: Decision) -> None:
        start, start_s = time.monotonic(), time.time()
        plain = merge(self.model)
        relayout(self.model, plain, split, self._strategy)
        self.model.make_train_function()
        soon = start - self._changed < _SOON * self._pause_s
        longer = max(self.cooldown_s, min(2 * self._pause_s, _LONGEST_S))
        self._pause_s = longer if soon else self.cooldown_s
        self._changed = time.monotonic()
        self._looks.clear()
        self._steps_s.clear()
        self._since = 0
        self.decisions.append(decision)
        note(f"moved shares: {short(str(decision))}", start_s)
        print_msg(
            f"\n{self.model.name}: {decision}; moved shares in "
            f"{self._changed - start:.1f} s."
        )


def _agreed(
    looks: Iterable[Mapping[str, float]], assumed: Mapping[str, float]
) -> dict[str, float]:
    """Slowness of devices, changed only as far as all looks agree.

    Other programs slow down now one device and now another for a moment.

    Args:
        looks: How many times slower each device was measured to be.
        assumed: How many times slower the present shares take it to be.
    """
    agreed = {}
    for device, ratio in assumed.items():
        seen = [look.get(device, ratio) for look in looks]
        agreed[device] = min(max(ratio, min(seen)), max(seen))
    return agreed


def _split_at(
    split: HowSplit, slower: Mapping[str, float], left: Collection[str]
) -> HowSplit:
    """The split with shares by present speeds, without some devices."""
    speeds = {d: 0.0 if d in left else 1 / s for d, s in slower.items()}
    return dataclasses.replace(split, speeds=speeds)


def _inverse(speed: float) -> float:
    return 1 / speed if speed else math.inf


@dataclasses.dataclass(frozen=True)
class Decision:
    """Why shares were moved.

    Attributes:
        step: Steps of the `fit` before it.
        slower: How many times slower each device is than in the beginning.
        saves: Part of the time of the convolutions that this is to save; of
            the step, if the model was planned or a device was left out.
        left: Devices that have no share any more.
    """

    step: int
    slower: Mapping[str, float]
    saves: float
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = [
            f"{device} takes {ratio:.1f} times as long as at first"
            + " and is left out" * (device in self.left)
            for device, ratio in self.slower.items()
            if ratio != 1.0
        ]
        return ", ".join(changed or ["all devices are as fast as at first"])
