"""Sweeps: functions that change one setting of a calibration to a value.

They take calibrations of whole models and of the star.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

from tf_convpar import units
from tf_convpar.planner._link import Link
from tf_convpar.planner._link import link_of
from tf_convpar.planner.descriptions import DESCRIPTION
from tf_convpar.planner.descriptions import SOURCE

# A calibration.
C = TypeVar("C")
# Value of a setting: a number, or the kernels of each convolution.
Value = float | Sequence[int]
Sweep = Callable[[C, Any], C]

_MBIT = 1e6 / 8


def mbit(*rates: float) -> tuple[float, ...]:
    """Bytes per second of rates in Mbit per second."""
    return tuple(rate * _MBIT for rate in rates)


def varied(
    calibration: C,
    over: str,
    sweeps: Mapping[str, Sweep[C]],
    values: Sequence[Value],
    report: Callable[[str], None],
) -> Iterator[tuple[Value, str, C]]:
    """Yields each value of a setting, its text, and the calibration with it.

    Args:
        calibration: Calibration that is changed.
        over: Name of the setting.
        sweeps: Sweeps that there are, by the names of their settings.
        values: Values of the setting.
        report: Function that is called with each value in words.

    Raises:
        ValueError: The setting is unknown, there are no values, or one is not
            possible.
    """
    if over not in sweeps:
        raise ValueError(
            f"Expected a sweep over one of {', '.join(sweeps)}. Received: "
            f"{over!r}."
        )
    if not values:
        raise ValueError(f"Expected values of {over}. Received none.")
    for value in values:
        label = label_of(over, value)
        report(label)
        if over != "kernels" and not isinstance(value, (int, float)):
            raise ValueError(f"Expected a number of {over}. Received: {value}.")
        yield value, label, sweeps[over](calibration, value)


def label_of(over: str, value: Value) -> str:
    """A value in words."""
    if not isinstance(value, (int, float)):
        return ":".join(str(n) for n in value)
    return units.link_words(value) if over == "bandwidth" else f"{value:g}"


def whole_number(what: str, value: float, one: str) -> int:
    """A value that is whole, and at least 1.

    Raises:
        ValueError: It is not.
    """
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"Expected whole {what}. Received: {value}.")
    if value < 1:
        raise ValueError(f"Expected at least one {one}. Received: {value:g}.")
    return int(value)


def with_devices(calibration: C, value: float, between: bool = False) -> C:
    """The calibration with that many devices.

    These are its first ones; beyond those that it has, copies of the last.

    Args:
        calibration: Calibration that is changed.
        value: Number of devices.
        between: Whether copies have links to each other: those of the last
            device with the chief.

    Raises:
        ValueError: It is no number of devices, or there is no device with a
            link to copy.
    """
    original: Any = calibration
    devices = whole_number("devices", value, "device")
    have, links = original.devices, original.links
    if devices > len(have) == 1:
        raise ValueError(
            f"Expected two or more devices, to know of links, to simulate "
            f"{devices}. Received one: {have[0].name}."
        )
    kept = list(have[:devices])
    links = [
        link
        for link in links
        if {link.source, link.target} <= {device.name for device in kept}
    ]
    last = have[-1].name
    copied = [link for link in links if last in (link.source, link.target)]
    for name in _new_names(original, devices - len(have)):
        links += [_renamed(link, {last: name}) for link in copied]
        if between:
            chief = have[0].name
            for other in kept[len(have) - 1 :]:
                for ends in ((chief, last), (last, chief)):
                    link = link_of(links, *ends)
                    links.append(
                        _renamed(link, {chief: other.name, last: name})
                    )
        kept.append(dataclasses.replace(have[-1], name=name))
    return dataclasses.replace(
        original, devices=tuple(kept), links=tuple(links)
    )


def with_bandwidth(calibration: C, bytes_per_s: float) -> C:
    """The calibration with all links at one rate.

    At a rate of 0 there are no links, and the chief is left alone.

    Raises:
        ValueError: The rate is negative.
    """
    original: Any = calibration
    if not bytes_per_s >= 0:
        raise ValueError(
            f"Expected bytes per second, at least 0. Received: {bytes_per_s}."
        )
    if not bytes_per_s:
        return with_devices(calibration, 1)
    links = tuple(
        dataclasses.replace(link, bytes_per_s=bytes_per_s)
        for link in original.links
    )
    return dataclasses.replace(original, links=links)


def _renamed(link: Link, names: Mapping[str, str]) -> Link:
    return dataclasses.replace(
        link,
        source=names.get(link.source, link.source),
        target=names.get(link.target, link.target),
    )


def _new_names(calibration: Any, count: int) -> list[str]:
    """Names for copies of the last device; described ones are numbered on."""
    last = calibration.devices[-1].name
    if calibration.facts.get(SOURCE) != DESCRIPTION:
        return [f"{last} (copy {i})" for i in range(1, count + 1)]
    # Devices of a name are numbered from 0, wherever they stand.
    kind, _, number = last.rpartition(":")
    return [f"{kind}:{int(number) + i}" for i in range(1, count + 1)]
