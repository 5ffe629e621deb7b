"""`convpar simulate`."""

from __future__ import annotations

import dataclasses
import pathlib

import click

from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli import _plans
from tf_convpar.cli import _presets
from tf_convpar.cli import _simulate_star
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter

# The sweeps, as `planner._sweep` names them. Its import would make `--help`
# wait for TensorFlow.
SWEEPS = ("devices", "bandwidth", "batch")


@click.command(
    name="simulate", cls=_method.ByMethod, star=_simulate_star.command
)
@click.option(
    "--model",
    type=_models.Model(),
    metavar="MODEL",
    help="A .keras file, or a model of keras.applications by name, such as "
    "ResNet50.",
)
@click.option(
    "--devices",
    metavar="LIST",
    help="[N x]NAME[:RATE], separated by commas, the chief first, such as "
    "4xcpu:100GFLOPS,2xgpu:2TFLOPS; or names without a rate, as --presets "
    "lists them.",
)
@click.option(
    "--link",
    default="1Gbit",
    show_default=True,
    help="Rate of each device's interface and direction: 100Mbit, 1.2GB (a "
    "second), inf.",
)
@click.option("--latency", default="0.1ms", show_default=True)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Images in a step.",
)
@_models.image
@_models.imported
@_models.wire_dtype
@_models.moments
@click.option(
    "--sweep",
    type=click.Choice(SWEEPS),
    help="Plan for some values of this, a row each, instead of one cluster.",
)
@click.option(
    "--values",
    metavar="V,V,...",
    help="Values of the sweep: 1,2,4 or 100Mbit,1Gbit.",
)
@_plans.output
@_plans.png
@_method.option
@_presets.option
@as_json
def command(
    model: str | None,
    devices: str | None,
    link: str,
    latency: str,
    batch: int,
    image: int | None,
    wire_dtype: str | None,
    moments: str | None,
    sweep: str | None,
    values: str | None,
    output: pathlib.Path | None,
    png: pathlib.Path | None,
    method: str,
    presets: bool,
    as_json: bool,
) -> None:
    """Plan a model for devices that nobody has.

    \b
      convpar simulate --model VGG16 --image 64 --devices 2xcpu:100GFLOPS
      convpar simulate --model VGG16 --devices 4xcpu:100GFLOPS --sweep devices

    The time of a convolution on a device is in proportion to its
    multiplications, that of another layer to the bytes that it reads and
    writes. How each convolution is split, and how long a step takes, is what
    `convpar plan` would say for such devices.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if presets:
        _presets.show(as_json)
        return
    if model is None or devices is None:
        raise click.UsageError(
            "Expected --model and --devices, such as --model ResNet50 "
            "--devices 4xcpu:100GFLOPS,2xgpu:2TFLOPS; or --method star, which "
            "has other options. Received no "
            f"{'--model' if model is None else '--devices'}."
        )
    if sweep is None and values is not None:
        raise click.UsageError("Expected --values with --sweep.")
    if sweep is not None and (output is not None or png is not None):
        raise click.UsageError(
            "Expected --sweep, which makes a plan for each value, or --output "
            "and --png, which write one. Received both."
        )
    with messages_only():
        wanted = None
        if values is not None:
            wanted = [_value(sweep, v.strip()) for v in values.split(",")]
        # Mistakes in these are told before TensorFlow is waited for.
        from tf_convpar import planner
        from tf_convpar.planner import descriptions

        descriptions.devices(devices)
        descriptions.link(link, latency)
    with without_chatter(), messages_only():
        loaded = _models.load(model, image)
    from rich.console import Console

    words = (devices, link, latency, batch)
    moments = moments or "all"
    status = Console(stderr=True).status("Planning")
    with messages_only(), status:
        if sweep is None:
            cluster = planner.described(loaded, *words)
            plan = planner.plan(loaded, cluster, wire_dtype, moments)
            ways = planner.compare(loaded, cluster, wire_dtype, plan, moments)
        else:
            found = planner.sweep(
                loaded,
                sweep,
                wanted,
                *words,
                wire_dtype,
                moments,
                report=lambda label: status.update(
                    f"Planning for {sweep} {label}"
                ),
            )
    about = f"{pathlib.Path(model).stem}, batch {batch}: {devices}, {link}"
    if sweep is None:
        _plans.show(plan, output, png, as_json, ways)
        return
    found = dataclasses.replace(found, about=about)
    if as_json:
        print_json(found.to_dict())
    else:
        Console().print(found.table(), highlight=False)


def _value(sweep: str | None, text: str) -> float:
    """Reads a value of a sweep."""
    from tf_convpar.planner import units

    if sweep == "bandwidth":
        return units.bytes_per_s(text)
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(
            f"Expected whole numbers for a sweep over {sweep}, separated by "
            f"commas. Received: {text!r}."
        ) from error
