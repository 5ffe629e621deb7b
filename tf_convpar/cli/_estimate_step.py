"""`convpar estimate memory` and `batch`: what a training step takes."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click

from tf_convpar.cli import _models
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter
from tf_convpar.cli._units import Unit

_optimizer = click.option(
    "--optimizer",
    default="sgd",
    show_default=True,
    help="Keras' name, such as adam.",
)


@click.command()
@_models.argument
@_models.image
@_optimizer
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    multiple=True,
    default=(32,),
    show_default=True,
    help="Images in a batch; may be given several times.",
)
@click.option(
    "--algorithm",
    help="Algorithm of every convolution, whose workspace counts. By default "
    "what layers say; Keras' layers use TensorFlow's own.",
)
@click.option(
    "--layers",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Layers to show, the largest first. JSON has all.",
)
@click.option("--memory", type=Unit("size"), help="A line for the picture.")
@click.option(
    "--png",
    type=OutputFile(),
    help="Draw memory by kind over batches.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Also train some steps, and show what TensorFlow's allocator says.",
)
@as_json
def memory(
    model: str,
    image: int | None,
    optimizer: str,
    batch: tuple[int, ...],
    algorithm: str | None,
    layers: int,
    memory: int | None,
    png: pathlib.Path | None,
    measure: bool,
    as_json: bool,
) -> None:
    """Show how much memory a training step takes, layer by layer.

    \b
      convpar estimate memory ResNet50 --image 64 --batch 8 --batch 16
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    step = _step(model, image, optimizer)
    from rich.console import Console

    from tf_convpar.papers.estimate import memory as of_memory

    batches = sorted(set(batch))
    with messages_only():
        estimates = [step.memory(n, algorithm) for n in batches]
    if png is not None:
        with messages_only():
            of_memory.draw(
                estimates, png, f"A training step of {model}", memory
            )
    measured: list[Any] = [None] * len(batches)
    if measure:
        with messages_only():
            measured = [
                of_memory.measured_memory(step.model, n, optimizer)
                for n in batches
            ]
    if as_json:
        print_json(
            {
                "model": model,
                "optimizer": optimizer,
                "batches": [
                    {**e.to_dict(), "measured": m and dataclasses.asdict(m)}
                    for e, m in zip(estimates, measured, strict=True)
                ],
            }
        )
        return
    console = Console()
    for estimate, peak in zip(estimates, measured, strict=True):
        console.print(f"{model}, batch {estimate.batch}", highlight=False)
        console.print(estimate.table(layers))
        console.print(estimate.peak_text, highlight=False, soft_wrap=True)
        if peak is not None:
            console.print(peak.beside(estimate), highlight=False)


@click.command()
@_models.argument
@_models.image
@_optimizer
@click.option(
    "--memory",
    type=Unit("size"),
    required=True,
    help="What a step may take: 8GiB.",
)
@click.option(
    "--algorithm",
    help="Algorithm of every convolution, for the largest batch.",
)
@click.option(
    "--best", is_flag=True, help="Measure which batch trains fastest."
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    multiple=True,
    help="A candidate for --best; may be given several times. By default "
    "powers of 2 up to 256 that fit.",
)
@click.option(
    "--sum",
    "literal",
    is_flag=True,
    help="Workspaces of all passes count, as in the paper, not the largest.",
)
@as_json
def batch(
    model: str,
    image: int | None,
    optimizer: str,
    memory: int,
    algorithm: str | None,
    best: bool,
    batch: tuple[int, ...],
    literal: bool,
    as_json: bool,
) -> None:
    """Find the largest mini-batch that fits in memory, and the fastest.

    \b
      convpar estimate batch MobileNetV2 --image 64 --memory 2GiB
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if (batch or literal) and not best:
        raise click.UsageError("Expected --batch and --sum with --best only.")
    step = _step(model, image, optimizer)
    from tf_convpar.papers import estimate as guidelines
    from tf_convpar.papers.estimate import memory as of_memory

    with messages_only():
        largest = guidelines.largest_batch(step, memory, algorithm=algorithm)
    report: dict[str, Any] = {
        "model": model,
        "memory_bytes": memory,
        "largest": largest,
    }
    rows = []
    if best:
        fitting = [n for n in guidelines.BATCHES if n <= largest]
        with messages_only():
            rows = guidelines.best_batch(
                step,
                memory,
                batch or fitting,
                shared=not literal,
                direct_step_s=lambda n: of_memory.measured_step_s(
                    step.model, n, optimizer
                ),
            )
        report["best"] = rows[0].batch
        report["batches"] = [row.to_dict() for row in rows]
    if as_json:
        print_json(report)
        return
    click.echo(f"Largest batch: {largest} images")
    if rows:
        from rich.console import Console

        Console().print(guidelines.batch_table(rows))


def _step(model: str, image: int | None, optimizer: str) -> Any:
    """The traced training step of a model."""
    loaded = _models.load(model, image)
    with without_chatter(), messages_only():
        from tf_convpar.papers.estimate.memory import Step

        return Step(loaded, optimizer)
