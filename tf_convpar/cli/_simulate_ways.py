"""`convpar simulate --ways` and `--speeds`: their options and calibrations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _models

if TYPE_CHECKING:
    from tf_convpar.planner import Calibration

# Options that are arguments of methods of replicas.
_METHODS = ("every", "fragments", "wire", "n_push", "n_fetch")
NAMES = ("ways", "speeds", *_METHODS)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose ways to train."""
    added = [
        click.option(
            "--ways",
            metavar="all|W,W,...",
            help="Compare ways to train for each value of a sweep: all, or "
            "some of alone, split, SyncSGD, SyncEASGD, AsyncSGD, AsyncEASGD, "
            "DownpourSGD, DiLoCo, groups.",
        ),
        click.option(
            "--speeds",
            metavar="S,S,...",
            help="With CALIBRATION: machines like its first device, at these "
            "speeds relative to it, such as 1,0.6,0.4.",
        ),
        click.option(
            "--every", type=int, help="DiLoCo: steps between exchanges; 50."
        ),
        click.option(
            "--fragments",
            type=int,
            help="DiLoCo: parts that travel one after another; 1.",
        ),
        click.option(
            "--wire",
            help="DiLoCo, SyncSGD: float32, bfloat16, int8 or int4; float32.",
        ),
        click.option(
            "--n-push", type=int, help="DownpourSGD: steps between pushes; 1."
        ),
        click.option(
            "--n-fetch",
            type=int,
            help="DownpourSGD: steps between fetches; as many.",
        ),
    ]
    for option in reversed(added):
        command = option(command)
    return command


def arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `compare`, from the values of options."""
    text = values["ways"]
    ways = None
    if text is not None and text != "all":
        ways = [name.strip() for name in text.split(",")]
    method_arguments = {
        name: values[name] for name in _METHODS if values[name] is not None
    }
    return method_arguments | {"ways": ways}


def measured(
    calibration: pathlib.Path, values: dict[str, Any]
) -> tuple[Any, Calibration, str]:
    """The model, the calibration of its machines, and a line about these."""
    from tf_convpar import planner
    from tf_convpar.planner import descriptions

    speeds = _speeds(values["speeds"])
    model, measurements, values["wire_dtype"] = _models.measured(
        calibration, values["model"], values["wire_dtype"]
    )
    name = pathlib.Path(values["model"] or measurements.facts["model"]).stem
    about = f"{name}, batch {measurements.batch}: {calibration.name}"
    if speeds is not None:
        rate, delay = descriptions.link(values["link"], values["latency"])
        measurements = planner.machines(measurements, speeds, rate, delay)
        about += f", speeds {values['speeds']}, {values['link']}"
    return model, measurements, about


def _speeds(text: str | None) -> Sequence[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(
            "Expected speeds as numbers, separated by commas, such as "
            f"1,0.6,0.4. Received: {text!r}."
        ) from error
