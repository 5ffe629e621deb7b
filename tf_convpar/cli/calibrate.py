"""`convpar calibrate`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _measuring_options
from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.machines import short

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tf_convpar.planner import Calibration
    from tf_convpar.planner.star import StarCalibration


@click.command(name="calibrate")
@_models.argument
@_measuring_options.batch
@_models.image
@click.option(
    "--fresh", is_flag=True, help="Measure even what is in the cache."
)
@click.option(
    "--algorithm",
    metavar="NAME",
    help='How convolutions are computed, as for convpar.parallelize: "auto" '
    "for the fastest; Keras' own by default.",
)
@_models.wire_dtype
@_measuring_options.threads
@_measuring_options.output
@_method.option
@click.option(
    "--throughput",
    default="auto",
    show_default=True,
    metavar="auto|eval|dry_run|RATES",
    help="For the star: auto: from the cache, or measured and kept; eval: "
    "measured and kept; dry_run: measured only; RATES: not measured but given, "
    'one for each device: "200GFLOPS,10TFLOPS".',
)
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="For the star: kernels that plans keep together; found out by "
    "default.",
)
@as_json
@click.pass_context
def command(
    context: click.Context,
    model: str,
    batch: int,
    image: int | None,
    fresh: bool,
    algorithm: str | None,
    wire_dtype: str | None,
    threads: int | None,
    output: pathlib.Path | None,
    method: str,
    throughput: str,
    quantum: int | None,
    as_json: bool,
) -> None:
    """Measure how long each layer of a model takes on devices, and links.

    \b
      convpar calibrate ResNet50 --image 64 --batch 8 --output calibration.json
      convpar calibrate VGG16 --method star --image 32 --output star.json
      convpar launch -n 3 -m tf_convpar calibrate ResNet50 --image 64 --batch 8

    MODEL is a .keras file, or a model of keras.applications by name. The
    devices are those of the cluster in TF_CONFIG, whose other tasks run
    `convpar worker`; without it, those of this machine.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    _method.check(
        context,
        method,
        star=("throughput", "quantum"),
        model=("fresh", "algorithm"),
    )
    strategy, loaded = _measuring_options.cluster_and_model(
        model, image, wire_dtype, threads
    )
    from tf_convpar import planner
    from tf_convpar.algorithms import check_algorithm
    from tf_convpar.planner import star

    of_star = method == _method.STAR
    calibration: Any
    with _measuring_options.progress() as report, messages_only():
        if of_star:
            calibration = star.calibrate(
                *(loaded, strategy, batch),
                throughput=throughput,
                quantum=quantum,
                report=report,
            )
        else:
            if algorithm is not None:
                check_algorithm(algorithm)
            calibration = planner.calibrate(
                *(loaded, strategy, batch),
                algorithm=algorithm,
                fresh=fresh,
                report=report,
            )
            calibration = _with_facts(
                calibration,
                model=model,
                image=image,
                algorithm=algorithm,
                wire_dtype=wire_dtype,
            )
        if output is not None:
            calibration.save(output)
    if as_json:
        print_json((star if of_star else planner).to_json(calibration))
        return
    from rich.console import Console

    console = Console()
    if of_star:
        _print_star(calibration, console)
    else:
        console.print(planner.layer_table(loaded, calibration))
        console.print(f"ms: forward + backward, of {calibration.batch} samples")
        if calibration.links:
            console.print(planner.link_table(calibration.links))
    if output is not None:
        console.print(f"Written to {output}.", markup=False)


def _with_facts(calibration: Calibration, **facts: object) -> Calibration:
    """The calibration with what its file says of how it was made."""
    said = {name: str(value) for name, value in facts.items() if value}
    return dataclasses.replace(calibration, facts={**calibration.facts, **said})


def _print_star(calibration: StarCalibration, console: Console) -> None:
    from tf_convpar import planner

    console.print(_kernels(calibration))
    console.print("ms: forward + input gradient + kernel gradient")
    if calibration.links:
        console.print(planner.link_table(calibration.links))
    console.print(
        f"Rest of a step: {1e3 * calibration.rest_s:.1f} ms. Kernels in "
        f"multiples of {calibration.quantum}."
    )


def _kernels(calibration: StarCalibration) -> Table:
    """A row for each number of kernels that was measured of each layer."""
    from rich.table import Table

    table = Table(
        "layer", "kernels", *(short(d.name) for d in calibration.devices)
    )
    for convolution in calibration.network:
        times = [d.times[convolution.name] for d in calibration.devices]
        for i, width in enumerate(times[0].filters):
            passes = [
                (t.forward[i], t.input_gradient[i], t.kernel_gradient[i])
                for t in times
            ]
            table.add_row(
                convolution.name if i == 0 else "",
                str(width),
                *(" + ".join(f"{1e3 * s:.1f}" for s in row) for row in passes),
            )
    return table
