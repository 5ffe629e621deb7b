"""`convpar demo`."""

from __future__ import annotations

import pathlib

import click

from tf_convpar import machines
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.demo import settings as settings_lib
from tf_convpar.demo.speeds import speeds


@click.command(name="demo")
@click.option(
    "--dataset",
    type=click.Choice(settings_lib.DATASETS),
    default="digits",
    show_default=True,
    help="Handwritten digits come with scikit-learn; CIFAR-10 is downloaded.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Worker processes, besides the chief.",
)
@click.option(
    "--shards",
    metavar="N,N,...",
    help="Kernels of each device, the chief first: weights or ratios. By "
    "default, by what each has of a core.",
)
@click.option(
    "--wire-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="The dtype in which feature maps and their gradients travel.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=8),
    default=100,
    show_default=True,
    help="Training steps of each run.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=64, show_default=True
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="demo-output",
    show_default=True,
    help="The folder for pictures, timeline and exported model.",
)
@as_json
def command(
    dataset: str,
    workers: int,
    shards: str | None,
    wire_dtype: str | None,
    steps: int,
    batch_size: int,
    seed: int,
    output: pathlib.Path,
    as_json: bool,
) -> None:
    """Train a small network on one device, then split, and compare.

    Starts worker processes on this machine, and trains the network of the
    paper with 50 and 500 kernels on real images: once on the chief alone and
    once split over all processes, from the same seed. It shows that the losses
    agree, how long a step takes, and how many bytes travel. Every process
    stands for a device with one core; where there are fewer cores, some share
    one.
    """
    available = len(machines.usable_cores())
    with messages_only():
        settings = settings_lib.Settings(
            dataset=dataset,
            shards=settings_lib.parse_shards(
                shards, speeds(workers + 1, available)
            ),
            wire_dtype=wire_dtype,
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            output=output,
            cores=available,
        )
    from rich.console import Console

    from tf_convpar.demo import conduct
    from tf_convpar.demo import table

    try:
        report = conduct.conduct(settings, workers, Console(stderr=True))
    except conduct.DemoError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(report.to_dict())
    else:
        table.print_report(report, settings, Console())
