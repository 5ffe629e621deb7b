"""`convpar plan`."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

_INPUT = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)
_OUTPUT = click.Path(dir_okay=False, path_type=pathlib.Path)


@click.command(name="plan")
@click.argument("calibration", type=_INPUT)
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="Give out kernels in units of this; the calibration's by default.",
)
@click.option(
    "--plan",
    "existing",
    type=_INPUT,
    help="Predict this plan, edited or not, instead of making one.",
)
@click.option("--output", type=_OUTPUT, help="Write the plan here, as JSON.")
@click.option(
    "--png", type=_OUTPUT, help="Draw here who is busy when in the step."
)
@as_json
def command(
    calibration: pathlib.Path,
    quantum: int | None,
    existing: pathlib.Path | None,
    output: pathlib.Path | None,
    png: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Say how many kernels each device should get.

    CALIBRATION is a file of `convpar calibrate`. The plan has the shortest
    step that it allows, proven; where one device is fastest it says so. Give
    the plan to ConvParallelStrategy(plan=...), or edit its counts and look at
    what comes of it with --plan.
    """
    if existing is not None and quantum is not None:
        raise click.UsageError("Expected --quantum or --plan, not both.")
    from tf_convpar import plans
    from tf_convpar.planner.star import _calibration_file
    from tf_convpar.planner.star import _plan

    with messages_only():
        measured = _calibration_file.load(calibration)
        if existing is not None:
            found = _plan.load(existing, measured)
        else:
            found = _plan.plan(measured, quantum)
        if output is not None:
            with _writing(output):
                found.save(output)
        if png is not None:
            with _writing(png):
                plans.draw(found, png)
    if as_json:
        print_json(found.to_dict())
        return
    from rich.console import Console

    console = Console()
    console.print(plans.table(found))
    console.print(found.reason, highlight=False, markup=False)
    for path in (output, png):
        if path is not None:
            click.echo(f"Written: {path}")


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    """Says which file it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"Could not write {path}: {error.strerror or error}."
        ) from error
