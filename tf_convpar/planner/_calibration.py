"""Calibrations: measured times of layers on devices, and rates of links.

All times are seconds, all sizes bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from tf_convpar.files import Checked
from tf_convpar.files import Count
from tf_convpar.files import Form
from tf_convpar.files import Name
from tf_convpar.files import Natural
from tf_convpar.files import Quantity
from tf_convpar.files import Some
from tf_convpar.files import Unexpected
from tf_convpar.planner._link import Link
from tf_convpar.planner._link import check_links

PASSES = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class Work(Checked):
    """The times of a layer on one device.

    Attributes:
        samples: Numbers of samples at which the whole layer was measured,
            ascending.
        forward: Seconds of the forward pass, one for each number in `samples`.
        backward: Seconds of both gradients, one for each number in `samples`.
        filters: Fractions of the layer's filters that were measured, at the
            largest number in `samples`; ascending, the last is 1.
        forward_of: Forward time at each of `filters`, as a fraction of the
            time with all filters.
        backward_of: Backward time at each of `filters`, as a fraction of the
            time with all filters.
        on_shards: Time that a device takes to compute the layer on shards,
            relative to the layer itself: one number forward, one backward.
    """

    samples: tuple[Count, ...]
    forward: tuple[Quantity, ...]
    backward: tuple[Quantity, ...]
    filters: tuple[Quantity, ...] = (1.0,)
    forward_of: tuple[Quantity, ...] = (1.0,)
    backward_of: tuple[Quantity, ...] = (1.0,)
    on_shards: tuple[Quantity, ...] = (1.0, 1.0)

    def check(self) -> None:
        """Points ascend, and each has its times."""
        check_points(self, "samples", "forward", "backward")
        check_points(self, "filters", "forward_of", "backward_of")
        if len(self.on_shards) != len(PASSES):
            raise Unexpected("a number forward, and one backward", "on_shards")

    def at(
        self,
        which: str,
        samples: float,
        filters: float = 1.0,
        on_shards: bool = True,
    ) -> float:
        """Seconds of a pass; 0 for no samples or no filters.

        `on_line` says what is beside measured points.

        Args:
            which: `"forward"` or `"backward"`.
            samples: Number of samples; need not be whole.
            filters: Fraction of the filters.
            on_shards: Whether the layer is computed on shards.
        """
        if samples <= 0 or filters <= 0:
            return 0.0
        seconds = on_line(self.samples, getattr(self, which), samples)
        if on_shards:
            seconds *= self.on_shards[PASSES.index(which)]
        if filters == 1:
            return seconds
        part = on_line(self.filters, getattr(self, f"{which}_of"), filters)
        return seconds * part

    def along(self, known: Work) -> Work:
        """The curves of an equal processor, at this one's speed.

        ```python
        slow.along(fast).at("forward", samples=4, filters=0.3)
        ```

        Args:
            known: What was measured on another device of the same kind. It may
                be faster or slower, as by a quota or another clock.
        """
        most = self.samples[-1]
        times = {}
        for which in PASSES:
            points = getattr(known, which)
            known_s = known.at(which, most, on_shards=False)
            if most > known.samples[-1]:
                known_s = max(known_s, points[-1])
            slower = getattr(self, which)[-1] / known_s
            times[which] = tuple(slower * seconds for seconds in points)
        return dataclasses.replace(known, **times)


def _times(work: Work, slower: float) -> Work:
    """The times of a device that is `slower` times as slow."""
    return dataclasses.replace(
        work,
        forward=tuple(slower * s for s in work.forward),
        backward=tuple(slower * s for s in work.backward),
    )


def check_points(value: Checked, points: str, *measured: str) -> None:
    """Checks that points ascend, and that there is a time for each.

    Args:
        value: Dataclass with these fields.
        points: Field of the numbers of samples or filters that were measured.
        *measured: Fields with a number for each of them.

    Raises:
        Unexpected: Points do not ascend, or their times are not as many.
    """
    numbers = getattr(value, points)
    if not numbers or list(numbers) != sorted(set(numbers)):
        raise Unexpected("numbers, each more than the one before,", points)
    for name in measured:
        count = len(getattr(value, name))
        if count != len(numbers):
            raise Unexpected(
                f"{len(numbers)} numbers, one for each of `{points}`,",
                name,
                received=f"{count}",
            )


def on_line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Interpolates and extrapolates measured points `xs`, `ys`, at `x` above 0.

    It is linear between points. Beyond them the line through the two nearest
    points goes on, unless it falls. Below the first point the value is at least
    proportional to that point. With one point it is proportional.
    """
    if len(xs) == 1:
        return ys[0] * x / xs[0]
    if xs[0] <= x <= xs[-1]:
        return float(np.interp(x, xs, ys))
    a, b = (0, 1) if x < xs[0] else (-2, -1)
    slope = max(0.0, (ys[b] - ys[a]) / (xs[b] - xs[a]))
    if x > xs[-1]:
        return ys[-1] + slope * (x - xs[-1])
    return max(ys[0] * x / xs[0], ys[0] - slope * (xs[0] - x))


@dataclasses.dataclass(frozen=True)
class MeasuredDevice(Checked):
    """A device, with measured times.

    Attributes:
        name: TensorFlow's name of it, such as
            `"/job:worker/replica:0/task:0/device:CPU:0"`.
        works: Times of each layer, by its key (`_work_keys.key`).
        update_s: Seconds of the optimizer's update of one parameter.
        byte_s: Seconds by which each byte that it sends or receives delays
            its computing.
        message_s: Seconds by which each message that it sends or receives
            delays its computing, however small the message is.
        memory_bytes: Memory that it can give to the model; None for no limit.
    """

    name: Name
    works: Mapping[str, Work]
    update_s: Quantity = 0.0
    byte_s: Quantity = 0.0
    message_s: Quantity = 0.0
    memory_bytes: Natural | None = None

    def times(self, slower: float) -> MeasuredDevice:
        """The same device, `slower` times as slow in all that it computes."""
        return dataclasses.replace(
            self,
            works={
                key: _times(work, slower) for key, work in self.works.items()
            },
            update_s=slower * self.update_s,
            byte_s=slower * self.byte_s,
            message_s=slower * self.message_s,
        )


@dataclasses.dataclass(frozen=True)
class Calibration(Checked):
    """The measurements from which a model is planned.

    ```python
    calibration = convpar.calibrate(model, strategy, batch_size=32)
    calibration.save("cluster.json")
    plan = convpar.plan(model, "cluster.json")  # whenever, wherever
    ```

    Attributes:
        model: Hash of the model's layers and their shapes.
        batch: Samples of a step.
        devices: All devices, the chief's first.
        links: Links in both directions between any two devices.
        slots: Numbers that the optimizer keeps for each parameter.
        facts: Facts about the environment of the measurement, for readers.
    """

    model: Name
    batch: Count
    devices: Some[MeasuredDevice]
    links: tuple[Link, ...]
    slots: Natural = 0
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Devices have the same layers, and links to each other."""
        for i, device in enumerate(self.devices):
            if set(device.works) != set(self.devices[0].works):
                raise Unexpected(
                    "the same layers for every device", "devices", i
                )
        names = [device.name for device in self.devices]
        check_links(self.links, names, itertools.permutations(names, 2))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file, whole or not at all.

        Raises:
            OSError: The file cannot be written.
        """
        _FORM.save(self, path)

    def among(
        self, devices: Sequence[str], slower: Mapping[str, float] | None = None
    ) -> Calibration:
        """The calibration of some of the devices, possibly slowed down.

        ```python
        calibration.among(strategy.devices, {strategy.devices[1]: 2.0})
        ```

        Args:
            devices: Names of these devices, the chief's first.
            slower: How many times slower than measured a device computes; 1
                for devices that are not in it.
        """
        slower = slower or {}
        by_name = {device.name: device for device in self.devices}
        return dataclasses.replace(
            self,
            devices=tuple(
                by_name[d].times(slower.get(d, 1.0)) for d in devices
            ),
            links=tuple(
                link
                for link in self.links
                if link.source in devices and link.target in devices
            ),
        )


_FORM = Form(Calibration, "calibration", 4, "Measure again")

load = _FORM.load
to_json = _FORM.to_json
