"""`convpar demo`."""

from __future__ import annotations

import pathlib

import click

from tf_convpar import machines
from tf_convpar.cli import _models
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.demo import settings as settings_lib


@click.command(name="demo")
@click.option(
    "--star",
    is_flag=True,
    help="The network of paper 1 instead, split as the paper does: by "
    "filters, joined by the chief.",
)
@click.option(
    "--dataset",
    type=click.Choice(settings_lib.DATASETS),
    default="digits",
    show_default=True,
    help="Handwritten digits come with scikit-learn; CIFAR-10 is downloaded.",
)
@click.option(
    "-n",
    "--workers",
    "tasks",
    type=click.IntRange(min=2),
    default=3,
    show_default=True,
    help="Run this many tasks: the chief and n-1 workers, as "
    "`convpar launch -n` does.",
)
@click.option(
    "--shards",
    metavar="N,N,...",
    help="With --star: kernels of each device, the chief first, as weights or "
    "ratios. By default, by what each has of a core.",
)
@_models.wire_dtype
@click.option(
    "--steps",
    type=click.IntRange(min=8),
    help="Training steps of each run: by default 8, with --star 100.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Images of a step: by default 48, with --star 64.",
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="demo-output",
    show_default=True,
    help="The folder for pictures, timeline, plan and exported model.",
)
@as_json
def command(
    star: bool,
    dataset: str,
    tasks: int,
    shards: str | None,
    wire_dtype: str | None,
    steps: int | None,
    batch_size: int | None,
    seed: int,
    output: pathlib.Path,
    as_json: bool,
) -> None:
    """Train a network plain, on one device, and on three unequal ones.

    \b
      convpar demo
      convpar demo --star --steps 20

    Starts workers on this machine, and trains ResNet-9 on real images, from
    the same seed: as plain Keras on the chief alone; by `parallelize` there,
    which measures what computes each convolution fastest; by `SyncSGD`, with a
    model on each of three devices; and by `parallelize` on all of them, which
    are measured and planned for. It shows the plan, that the losses agree, how
    long a step takes, and how many bytes travel. Devices
    are processes: the chief has a core, and the workers share another, the
    first with the largest part. What is measured is not kept.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    if shards is not None and not star:
        raise click.UsageError("Expected --shards with --star only.")
    available = len(machines.usable_cores())
    with messages_only():
        weights = None
        if star:
            weights = settings_lib.parse_shards(
                shards, settings_lib.default_shards(tasks, available)
            )
        settings = settings_lib.Settings(
            dataset=dataset,
            shards=weights,
            wire_dtype=wire_dtype,
            steps=steps or (100 if star else 8),
            batch_size=batch_size or (64 if star else 48),
            seed=seed,
            output=output,
            cores=available,
        )
    from rich.console import Console

    from tf_convpar.demo import conduct
    from tf_convpar.demo import table

    try:
        report = conduct.conduct(settings, tasks - 1, Console(stderr=True))
    except conduct.DemoError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(report.to_dict())
    else:
        table.print_report(report, settings, Console())
