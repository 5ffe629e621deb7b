"""`convpar simulate --ways`: which way to train, and the machines for it."""

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

# Those that are arguments of methods of replicas.
_METHODS = ("every", "fragments", "wire", "n_push", "n_fetch")
NAMES = ("ways", "speeds", *_METHODS)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose ways to train."""
    made = [
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
            help="DiLoCo: float32, bfloat16, int8 or int4; float32.",
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
    for option in reversed(made):
        command = option(command)
    return command


def arguments(given: dict[str, Any]) -> dict[str, Any]:
    """What the options say to `compare`."""
    text = given["ways"]
    ways = None
    if text is not None and text != "all":
        ways = [name.strip() for name in text.split(",")]
    found = {name: given[name] for name in _METHODS if given[name] is not None}
    return found | {"ways": ways}


def measured(
    calibration: pathlib.Path, given: dict[str, Any]
) -> tuple[Any, Calibration, str]:
    """The model, the calibration of its machines, and what these are."""
    from tf_convpar import planner
    from tf_convpar.planner import descriptions

    speeds = _speeds(given["speeds"])
    model, found, given["wire_dtype"] = _models.measured(
        calibration, given["model"], given["wire_dtype"]
    )
    name = pathlib.Path(given["model"] or found.facts["model"]).stem
    about = f"{name}, batch {found.batch}: {calibration.name}"
    if speeds is not None:
        rate, delay = descriptions.link(given["link"], given["latency"])
        found = planner.machines(found, speeds, rate, delay)
        about += f", speeds {given['speeds']}, {given['link']}"
    return model, found, about


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
