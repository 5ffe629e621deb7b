"""`convpar calibrate --method star`: for plans of paper 1's star."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _measuring
from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.machines import short

if TYPE_CHECKING:
    from tf_convpar.planner.star import StarCalibration


@click.command(name="calibrate")
@_models.argument
@_measuring.batch
@_models.image
@click.option(
    "--throughput",
    default="auto",
    show_default=True,
    metavar="auto|eval|dry_run|RATES",
    help="auto: from the cache, or measured and kept; eval: measured and "
    "kept; dry_run: measured only; RATES: not measured but given, one for "
    'each device: "200GFLOPS,10TFLOPS".',
)
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="Kernels that plans keep together; found out by default.",
)
@_models.wire_dtype
@_measuring.threads
@_measuring.output
@_method.option
@as_json
def command(
    model: str,
    batch: int,
    image: int | None,
    throughput: str,
    quantum: int | None,
    wire_dtype: str | None,
    threads: int | None,
    output: pathlib.Path | None,
    method: str,
    as_json: bool,
) -> None:
    """Measure a model's convolutions, for plans of paper 1's star.

    \b
      convpar calibrate VGG16 --method star --image 32 --output star.json

    MODEL is a .keras file, or a model of keras.applications by name. The
    devices are those of the cluster in TF_CONFIG, whose other tasks run
    `convpar worker`; without it, those of this machine.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    strategy, loaded = _measuring.cluster_and_model(
        model, image, wire_dtype, threads
    )
    from tf_convpar.planner import star as planner

    with _measuring.progress() as report, messages_only():
        found = planner.calibrate(
            loaded,
            strategy,
            batch,
            throughput=throughput,
            quantum=quantum,
            report=report,
        )
        if output is not None:
            planner.save(found, output)
    if as_json:
        print_json(planner.to_json(found))
    else:
        _print(found, output)


def _print(found: StarCalibration, output: pathlib.Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("layer", "kernels", *(short(d.name) for d in found.devices))
    for convolution in found.network:
        times = [d.times[convolution.name] for d in found.devices]
        for i, width in enumerate(times[0].filters):
            table.add_row(
                convolution.name if i == 0 else "",
                str(width),
                *(
                    " + ".join(f"{1e3 * s[i]:.1f}" for s in _passes(t))
                    for t in times
                ),
            )
    console.print(table)
    console.print("ms: forward + input gradient + kernel gradient")
    if found.links:
        console.print(_measuring.links(found.links))
    console.print(
        f"Rest of a step: {1e3 * found.rest_s:.1f} ms. Kernels in multiples "
        f"of {found.quantum}."
    )
    if output is not None:
        console.print(f"Written to {output}.", markup=False)


def _passes(times: Any) -> tuple[tuple[float, ...], ...]:
    return (times.forward, times.input_gradient, times.kernel_gradient)
