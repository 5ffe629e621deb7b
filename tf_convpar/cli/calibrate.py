"""`convpar calibrate`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _calibrate_star
from tf_convpar.cli import _measuring
from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from tf_convpar.planner import Calibration


@click.command(
    name="calibrate", cls=_method.ByMethod, star=_calibrate_star.command
)
@_models.argument
@_measuring.batch
@_models.image
@click.option(
    "--fresh", is_flag=True, help="Measure even what is in the cache."
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
    fresh: bool,
    wire_dtype: str | None,
    threads: int | None,
    output: pathlib.Path | None,
    method: str,
    as_json: bool,
) -> None:
    """Measure how long each layer of a model takes on devices, and links.

    \b
      convpar calibrate ResNet50 --image 64 --batch 8 --output calibration.json
      convpar launch -n 3 -m tf_convpar calibrate ResNet50 --image 64 --batch 8

    MODEL is a .keras file, or a model of keras.applications by name. The
    devices are those of the cluster in TF_CONFIG, whose other tasks run
    `convpar worker`; without it, those of this machine.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    strategy, loaded = _measuring.cluster_and_model(
        model, image, wire_dtype, threads
    )
    from tf_convpar import planner

    with _measuring.progress() as report, messages_only():
        found = planner.calibrate(
            loaded, strategy, batch, fresh=fresh, report=report
        )
        given = {"model": model, "image": image, "wire_dtype": wire_dtype}
        words = {name: str(value) for name, value in given.items() if value}
        found = dataclasses.replace(found, facts={**found.facts, **words})
        if output is not None:
            planner.save(found, output)
    if as_json:
        print_json(planner.to_json(found))
    else:
        _print(loaded, found, output)


def _print(model: Any, found: Calibration, output: pathlib.Path | None) -> None:
    from rich.console import Console

    from tf_convpar import planner

    console = Console()
    console.print(planner.layer_table(model, found))
    console.print(f"ms: forward + backward, of {found.batch} samples")
    if found.links:
        console.print(planner.link_table(found.links))
    if output is not None:
        console.print(f"Written to {output}.", markup=False)
