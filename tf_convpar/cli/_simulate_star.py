"""`convpar simulate --method star`: its cluster, from a file or from words."""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import click

if TYPE_CHECKING:
    from tf_convpar.planner.star import StarCalibration


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that only the star has, all but those for files."""
    added = [
        click.option(
            "--kernels",
            metavar="N:N...",
            default="500:1500",
            show_default=True,
            help="For the star: kernels of each convolution, in a network on "
            "32x32x3 images.",
        ),
        click.option(
            "--conv-share",
            type=float,
            help="For the star: the part of a step on the chief alone that "
            "convolutions take; 0.9 by default.",
        ),
        click.option(
            "--rest",
            metavar="TIME",
            help="For the star, instead of that: what the rest of a step "
            "takes, such as 20ms.",
        ),
        click.option(
            "--idle",
            type=float,
            default=0.0,
            show_default=True,
            help="For the star: the part of its power that a described device "
            "draws while it waits.",
        ),
        click.option(
            "--quantum",
            type=click.IntRange(min=1),
            help="For the star: plans give devices multiples of so many "
            "kernels.",
        ),
        click.option(
            "--watts",
            metavar="NAME=W",
            multiple=True,
            help="For the star: power of a device while it computes; of all "
            "of its name, as in cpu=65. May be given several times.",
        ),
    ]
    for option in reversed(added):
        command = option(command)
    return command


def cluster(
    calibration: pathlib.Path | None,
    watts: Sequence[str],
    devices: str,
    link: str,
    latency: str,
    kernels: str,
    batch: int,
    conv_share: float | None,
    rest: str | None,
    idle: float,
) -> StarCalibration:
    """The cluster of a file, or else the one that is described.

    Args:
        calibration: File of a calibration; None for the described one.
        watts: Powers of devices, as `NAME=W`.
        devices: As for `star_simulation.describe`, and so are all that follow.
        link: Rate of links.
        latency: Latency of links.
        kernels: Kernels of each convolution.
        batch: Images in a step.
        conv_share: Part of convolutions in a step.
        rest: Time of the rest of a step.
        idle: Part of the power of a device that waits.
    """
    from tf_convpar import units
    from tf_convpar.papers import star_simulation
    from tf_convpar.planner import star

    if calibration is not None:
        star_calibration = star.load(calibration)
    else:
        star_calibration = star_simulation.describe(
            star.network(kernels_of(kernels), batch),
            devices,
            link,
            latency,
            rest=None if rest is None else units.seconds(rest),
            conv_share=conv_share,
            idle=idle,
        )
    for item in watts:
        star_calibration = _with_watts(star_calibration, item)
    return star_calibration


def kernels_of(text: str) -> tuple[int, ...]:
    """Reads the kernels of each convolution: `500:1500`."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(
            "Expected kernels of each convolution, such as 500:1500. "
            f"Received: {text!r}."
        )
    return tuple(int(part) for part in parts)


def _with_watts(cluster: StarCalibration, item: str) -> StarCalibration:
    """The cluster, with the power of its devices NAME set by `NAME=W`."""
    from tf_convpar import units
    from tf_convpar.papers import star_simulation

    name, equals, power = item.rpartition("=")
    if not equals:
        raise ValueError(
            f"Expected --watts NAME=W, such as cpu=65. Received: {item!r}."
        )
    watts = units.watts(power)
    names = [device.name for device in cluster.devices]
    meant = set(fnmatch.filter(names, name)) or set(
        fnmatch.filter(names, f"{name}:*")
    )
    if not meant:
        raise ValueError(
            f"Expected --watts for one of {', '.join(names)}. Received: "
            f"{name!r}."
        )
    return dataclasses.replace(
        cluster,
        devices=tuple(
            star_simulation.with_watts(device, watts)
            if device.name in meant
            else device
            for device in cluster.devices
        ),
    )
