"""`convpar estimate devices` and `servers`: how many gain what."""

from __future__ import annotations

import math
from typing import Any

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._units import Unit
from tf_convpar.units import seconds_text


@click.command()
@click.option(
    "--overhead",
    type=float,
    help="Seconds of a step that devices do not share, by seconds that they "
    "do: 0.05 for 5 %.",
)
@click.option("--devices", type=click.IntRange(min=1), help="How many.")
@click.option("--speedup", type=float, help="Wanted, against one device.")
@click.option("--efficiency", type=float, help="Wanted, of each device.")
@as_json
def devices(
    overhead: float | None,
    devices: int | None,
    speedup: float | None,
    efficiency: float | None,
    as_json: bool,
) -> None:
    """Say what more devices gain, in data parallelism.

    \b
      convpar estimate devices --overhead 0.05 --devices 4

    --overhead and --devices give their speedup and efficiency; --overhead and
    --speedup, the fewest devices that reach this speedup; --efficiency and
    --devices, the overhead up to which they are so efficient.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    options = {
        "overhead": overhead,
        "devices": devices,
        "speedup": speedup,
        "efficiency": efficiency,
    }
    with messages_only():
        count, ratio = _devices_and_overhead(
            {name: v for name, v in options.items() if v is not None}
        )
        report = _gain(count, ratio)
    if as_json:
        print_json(report)
    elif math.isinf(ratio):
        click.echo(f"{count} devices: any overhead leaves that efficiency")
    else:
        click.echo(
            f"{count} devices, overhead {ratio:.2%} of one device's "
            f"computation: {report['speedup']:.2f} times as fast, each "
            f"{report['efficiency']:.1%} efficient"
        )


def _devices_and_overhead(options: dict[str, Any]) -> tuple[int, float]:
    """The number of devices and their overhead, one of which may be solved."""
    from tf_convpar.papers import estimate as guidelines

    if options.keys() == {"overhead", "devices"}:
        return options["devices"], options["overhead"]
    if options.keys() == {"overhead", "speedup"}:
        overhead = options["overhead"]
        return guidelines.devices_for(options["speedup"], overhead), overhead
    if options.keys() == {"efficiency", "devices"}:
        devices = options["devices"]
        return devices, guidelines.overhead_for(options["efficiency"], devices)
    raise click.UsageError(
        "Expected --overhead with --devices or --speedup, or --efficiency with "
        "--devices. Received: "
        f"{', '.join(sorted(f'--{name}' for name in options)) or 'nothing'}."
    )


def _gain(devices: int, overhead: float) -> dict[str, Any]:
    """Speedup and efficiency of `devices` devices, as plain data."""
    from tf_convpar.papers import estimate as guidelines

    if math.isinf(overhead):
        return {
            "devices": devices,
            "overhead_ratio": None,
            "speedup": 1.0,
            "efficiency": 1 / devices,
        }
    return {
        "devices": devices,
        "overhead_ratio": overhead,
        "speedup": guidelines.speedup(devices, overhead),
        "efficiency": guidelines.efficiency(devices, overhead),
    }


@click.command()
@click.option(
    "--parameters",
    type=Unit("size"),
    required=True,
    help="Size of the model's parameters: 244MB.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    required=True,
    help="Number of workers.",
)
@click.option(
    "--link",
    type=Unit("bytes_per_s"),
    required=True,
    help="Rate of each server's link: 10Gbit, 1.2GB.",
)
@click.option(
    "--compute",
    type=Unit("seconds"),
    required=True,
    help="Time in which a worker computes a step: 1s, 300ms.",
)
@click.option(
    "--full-duplex",
    is_flag=True,
    help="Servers send and receive at full rate at once.",
)
@as_json
def servers(
    parameters: int,
    workers: int,
    link: float,
    compute: float,
    full_duplex: bool,
    as_json: bool,
) -> None:
    """Say how many parameter servers keep workers from waiting.

    \b
      convpar estimate servers --parameters 244MB --workers 4 \\
        --link 10Gbit --compute 1s
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar.papers import estimate as guidelines

    with messages_only():
        count = guidelines.parameter_servers(
            parameters, workers, link, compute, full_duplex
        )
    traffic = (1 if full_duplex else 2) * parameters * workers / link / count
    report = {"servers": count, "busy_s": traffic, "compute_s": compute}
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"{count} parameter server{'s'[: count > 1]}: each busy for "
            f"{seconds_text(traffic)} of a step's {seconds_text(compute)}"
        )
