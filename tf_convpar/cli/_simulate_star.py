"""`convpar simulate --method star`: predictions for paper 1's star."""

from __future__ import annotations

import dataclasses
import fnmatch
import pathlib
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _method
from tf_convpar.cli import _presets
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from tf_convpar.planner.star import StarCalibration

# The sweeps, as `planner.star._simulate` names them.
SWEEPS = ("devices", "bandwidth", "batch", "kernels", "heterogeneity")
# Options that describe a cluster. A calibration file says all that for itself.
DESCRIPTION = (
    "devices",
    "link",
    "latency",
    "kernels",
    "batch",
    "conv_share",
    "rest",
    "idle",
)


@click.command(name="simulate")
@click.argument(
    "calibration",
    required=False,
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
)
@click.option(
    "--devices",
    metavar="LIST",
    help="Instead of a file: [N x]NAME[:RATE][@WATTS], separated by commas, "
    "the chief first, such as 4xcpu:100GFLOPS,1xgpu:10TFLOPS@180W; or names "
    "without a rate, as --presets lists them.",
)
@click.option(
    "--link",
    default="1Gbit",
    show_default=True,
    help="Rate of each link and direction: 100Mbit, 1.2GB (a second), inf.",
)
@click.option("--latency", default="0.1ms", show_default=True)
@click.option(
    "--kernels",
    metavar="N:N...",
    default="500:1500",
    show_default=True,
    help="Kernels of each convolution, in a network on 32x32x3 images.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Images in a step.",
)
@click.option(
    "--conv-share",
    type=float,
    help="The part of a step on the chief alone that convolutions take; 0.9 "
    "by default.",
)
@click.option(
    "--rest",
    metavar="TIME",
    help="Instead of that: what the rest of a step takes, such as 20ms.",
)
@click.option(
    "--idle",
    type=float,
    default=0.0,
    show_default=True,
    help="The part of its power that a described device draws while it waits.",
)
@click.option(
    "--sweep",
    type=click.Choice(SWEEPS),
    default="devices",
    show_default=True,
    help="What changes from row to row.",
)
@click.option(
    "--values",
    metavar="V,V,...",
    help="Values of the sweep: 1,2,4 or 100Mbit,1Gbit or 50:500,500:1500.",
)
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="Plans give devices multiples of so many kernels.",
)
@click.option(
    "--watts",
    "watts",
    metavar="NAME=W",
    multiple=True,
    help="Power of a device while it computes; of all of its name, as in "
    "cpu=65. May be given several times.",
)
@click.option(
    "--csv",
    "csv_file",
    type=OutputFile(),
    help="Write the rows to this file.",
)
@click.option(
    "--png",
    type=OutputFile(),
    help="Draw them to this file.",
)
@_method.option
@_presets.option
@as_json
@click.pass_context
def command(
    context: click.Context,
    calibration: pathlib.Path | None,
    sweep: str,
    values: str | None,
    quantum: int | None,
    watts: tuple[str, ...],
    csv_file: pathlib.Path | None,
    png: pathlib.Path | None,
    method: str,
    presets: bool,
    as_json: bool,
    **description: Any,
) -> None:
    """Predict training steps of paper 1's star without the hardware.

    \b
      convpar simulate --method star --devices 4xcpu:100GFLOPS,gpu:2TFLOPS

    CALIBRATION is a file of `convpar calibrate --method star`. Without one,
    --devices describes the cluster, and the network is two convolutions of
    5x5 on images of 32x32x3, each followed by pooling.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if presets:
        _presets.show(as_json)
        return
    if calibration is None and description["devices"] is None:
        raise click.UsageError(
            "Expected a calibration file or --devices, such as --devices "
            "4xcpu:100GFLOPS. Received neither."
        )
    if calibration is not None:
        default = click.core.ParameterSource.DEFAULT
        for name in DESCRIPTION:
            if context.get_parameter_source(name) != default:
                raise click.UsageError(
                    f"Expected --{name.replace('_', '-')} without a file, "
                    f"which says that for itself. Received it with "
                    f"{calibration}."
                )
    from rich.console import Console

    from tf_convpar.planner import star

    with messages_only():
        if calibration is not None:
            cluster = star.load(calibration)
        else:
            cluster = _described(**description)
        for item in watts:
            cluster = _with_watts(cluster, item)
        wanted = None
        if values is not None:
            wanted = [_value(sweep, v.strip()) for v in values.split(",")]
        with Console(stderr=True).status("Simulating") as status:
            found = star.simulate(
                cluster,
                sweep,
                wanted,
                quantum,
                lambda label: status.update(f"Simulating {sweep}: {label}"),
            )
        if csv_file is not None:
            found.csv(csv_file)
        if png is not None:
            star.draw(found, png)
    if as_json:
        print_json(found.to_dict())
    else:
        Console().print(found.table(), highlight=False)


def _described(
    devices: str,
    link: str,
    latency: str,
    kernels: str,
    batch: int,
    conv_share: float | None,
    rest: str | None,
    idle: float,
) -> StarCalibration:
    from tf_convpar.planner import star
    from tf_convpar.planner import units

    return star.describe(
        star.network(_kernels(kernels), batch),
        devices,
        link,
        latency,
        rest=None if rest is None else units.seconds(rest),
        conv_share=conv_share,
        idle=idle,
    )


def _kernels(text: str) -> tuple[int, ...]:
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts):
        raise ValueError(
            "Expected kernels of each convolution, such as 500:1500. "
            f"Received: {text!r}."
        )
    return tuple(int(part) for part in parts)


def _value(sweep: str, text: str) -> Any:
    """Reads a value of a sweep."""
    from tf_convpar.planner import units

    if sweep == "kernels":
        return _kernels(text)
    if sweep == "bandwidth":
        return units.bytes_per_s(text)
    try:
        return float(text) if sweep == "heterogeneity" else int(text)
    except ValueError as error:
        raise ValueError(
            f"Expected numbers for a sweep over {sweep}, separated by commas. "
            f"Received: {text!r}."
        ) from error


def _with_watts(cluster: StarCalibration, item: str) -> StarCalibration:
    """The cluster, with the power of its devices NAME set by `NAME=W`."""
    from tf_convpar.planner import star
    from tf_convpar.planner import units

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
            star.with_watts(device, watts) if device.name in meant else device
            for device in cluster.devices
        ),
    )
