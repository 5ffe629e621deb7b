"""`convpar plan`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _method
from tf_convpar.cli import _models
from tf_convpar.cli import _plans
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only

if TYPE_CHECKING:
    from tf_convpar.planner import Calibration
    from tf_convpar.planner import Way
    from tf_convpar.planner.star import StarCalibration
    from tf_convpar.plans import Plan

_INPUT = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)


@click.command(name="plan")
@click.argument("calibration", type=_INPUT)
@click.option(
    "--model",
    type=_models.Model(),
    metavar="MODEL",
    help="The model that was measured: a .keras file, or a model of "
    "keras.applications by name; by default the one that the calibration "
    "names.",
)
@_models.imported
@_models.wire_dtype
@_models.moments
@_method.option
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="For the star: kernels are given out in multiples of this; "
    "by default what the calibration says.",
)
@click.option(
    "--plan",
    "existing",
    type=_INPUT,
    help="Predict this plan, edited or not, instead of making one.",
)
@_plans.output
@_plans.png
@as_json
def command(
    calibration: pathlib.Path,
    model: str | None,
    wire_dtype: str | None,
    moments: str | None,
    method: str,
    quantum: int | None,
    existing: pathlib.Path | None,
    output: pathlib.Path | None,
    png: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Say how each convolution should be split.

    \b
      convpar plan calibration.json --output plan.json --png plan.png

    CALIBRATION is a file of `convpar calibrate`, of a whole model or of a
    star. That of a whole model can be planned by --method star as well. The
    plan has the shortest step that the calibration allows, proven; where one
    device alone is fastest it says so. Give the plan to
    ConvParallelStrategy(plan=...), or edit its numbers and see with --plan how
    long a step then takes. For a whole model, one device alone and replicas of
    convpar.replicas, each on a device or on a group of them, stand beside it.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if existing is not None and quantum is not None:
        raise click.UsageError("Expected --quantum or --plan, not both.")
    from tf_convpar import files
    from tf_convpar import plans
    from tf_convpar.planner import star

    ways: Sequence[Way] = ()
    with messages_only():
        if files.kind_of(calibration) == star.KIND:
            _refuse(
                "of a whole model",
                model=model,
                wire_dtype=wire_dtype,
                moments=moments,
            )
            plan = _plan_star(star.load(calibration), quantum, existing)
        elif method == _method.STAR:
            _refuse("and --method model", moments=moments)
            arguments = _models.measured(calibration, model, wire_dtype)
            of_star = star.of_measurements(*arguments)
            plan = _plan_star(of_star, quantum, existing)
        else:
            _refuse("of a star", quantum=quantum)
            edited = None if existing is None else plans.load(existing)
            arguments = _models.measured(calibration, model, wire_dtype)
            plan, ways = _plan_model(*arguments, moments or "all", edited)
    _plans.show(plan, output, png, as_json, ways)


def _refuse(what: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(
                f"Expected --{name.replace('_', '-')} with a calibration "
                f"{what} only. Received: {value}."
            )


def _plan_star(
    measured: StarCalibration,
    quantum: int | None,
    existing: pathlib.Path | None,
) -> Plan:
    from tf_convpar.planner import star

    if existing is not None:
        return star.load_plan(existing, measured)
    return star.plan(measured, quantum)


def _plan_model(
    model: Any,
    measured: Calibration,
    wire: str | None,
    moments: str,
    edited: Plan | None,
) -> tuple[Plan, Sequence[Way]]:
    from tf_convpar import planner

    if edited is not None:
        return planner.plan_of(model, measured, edited, wire, moments), ()
    plan = planner.plan(model, measured, wire, moments)
    ways = planner.compare(model, measured, wire, plan, moments)
    return plan, ways
