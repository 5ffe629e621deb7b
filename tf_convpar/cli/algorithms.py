"""`convpar algorithms`."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _measuring_options
from tf_convpar.cli import _models
from tf_convpar.cli._choices import Choices
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from rich.console import Console

# The passes, as `tf_convpar.algorithms` names them. Its import would make
# `--help` wait for TensorFlow.
PASSES = ("forward", "input_gradient", "kernel_gradient")


@click.command(name="algorithms")
@_models.argument
@_measuring_options.batch
@_models.image
@_measuring_options.threads
@click.option(
    "--passes",
    metavar="NAME,...",
    default=",".join(PASSES),
    show_default=True,
    help="The passes to choose for.",
)
@click.option("--refresh", is_flag=True, help="Measure what is known already.")
@click.option(
    "--step/--no-step",
    default=True,
    show_default=True,
    help="Also make whole training steps, plain and with what was chosen "
    "(where all passes are asked for).",
)
@as_json
def command(
    model: str,
    batch: int,
    image: int | None,
    threads: int | None,
    passes: str,
    refresh: bool,
    step: bool,
    as_json: bool,
) -> None:
    """Show which algorithm is fastest for each convolution of a model.

    \b
      convpar algorithms MobileNetV2 --image 64 --batch 4

    And what a training step on this machine alone gains by that.

    MODEL is a .keras file, or a model of keras.applications by name, such as
    ResNet50. What is not known yet is measured on this machine's CPU, which
    takes a second or so for each convolution, and kept for later programs.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    wanted = tuple(passes.split(","))
    if not set(wanted) <= set(PASSES):
        raise click.BadParameter(
            f"Expected some of {', '.join(PASSES)}. Received: {passes}.",
            param_hint="--passes",
        )
    _measuring_options.set_threads(threads)
    loaded = _models.load(model, image)
    from rich.console import Console

    console = Console(stderr=True)
    convolutions = _consult(loaded, batch, wanted, refresh, console)
    choices = Choices(
        model=model,
        batch=batch,
        threads=threads,
        passes=wanted,
        convolutions=convolutions,
        step=(
            _step(loaded, batch, console)
            if step and set(wanted) == set(PASSES)
            else None
        ),
    )
    if as_json:
        print_json(choices.to_dict())
        return
    screen = Console()
    for part in choices.tables():
        screen.print(part, highlight=False)


def _consult(
    model: Any,
    batch: int,
    passes: tuple[str, ...],
    refresh: bool,
    console: Console,
) -> list[dict[str, Any]]:
    """Plain data of each distinct convolution, its layers and its records."""
    from rich.progress import BarColumn
    from rich.progress import MofNCompleteColumn
    from rich.progress import Progress
    from rich.progress import TextColumn

    from tf_convpar import algorithms
    from tf_convpar.layers import convolutions

    with messages_only():
        algorithms.workspace_cap()
    layers = collections.defaultdict(list)
    for name, geometry in convolutions(model, batch):
        layers[geometry].append(name)
    entries = []
    with Progress(
        TextColumn("Measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        # A thread that draws would be measured too.
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=len(layers))
        for geometry, names in layers.items():
            text = algorithms.describe(geometry)

            def report(doing: str, text: str = text) -> None:
                progress.update(task, description=f"{text}: {doing}")
                progress.refresh()

            report("")
            raced = algorithms.race_geometry(geometry)
            records = algorithms.consult(
                raced, None, passes, refresh=refresh, report=report
            )
            progress.advance(task)
            entries.append(
                {
                    "convolution": text,
                    "layers": names,
                    "geometry": dataclasses.asdict(geometry),
                    "images": raced.batch,
                    "passes": {
                        which: _whole_batch_record(
                            record, which, geometry, raced
                        )
                        for which, record in records.items()
                    },
                }
            )
    return entries


def _step(model: Any, batch: int, console: Console) -> dict[str, float]:
    from rich.progress import Progress
    from rich.progress import TextColumn

    from tf_convpar.cli import _one_device

    with (
        Progress(
            TextColumn("A training step: {task.description}"),
            console=console,
            transient=True,
            auto_refresh=False,  # As above.
            disable=not console.is_terminal,
        ) as progress,
        messages_only(),
    ):
        task = progress.add_task("")

        def report(doing: str) -> None:
            progress.update(task, description=doing)
            progress.refresh()

        return _one_device.step(model, batch, report)


def _whole_batch_record(
    record: Any, which: str, geometry: Any, raced: Any
) -> Any:
    """A record as plain data, with times and memory for the whole batch.

    The algorithms may have raced with a part of the batch only, and with widths
    near to these.
    """
    from tf_convpar.algorithms import named

    plain = dataclasses.asdict(record)
    for candidate in plain["candidates"]:
        algorithm = named(candidate["name"], geometry)
        candidate["workspace_bytes"] = algorithm.workspace(geometry, which)
        for name in ("time_ms", "spread_ms"):
            if candidate[name] is not None:
                more = geometry.multiplications / raced.multiplications
                candidate[name] *= more
    return plain
