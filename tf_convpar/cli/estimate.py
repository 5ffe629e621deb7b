"""`convpar estimate`."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar import units
from tf_convpar.cli import _models
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter

if TYPE_CHECKING:
    from rich.console import Console


class _Unit(click.ParamType):
    """A value that the function `name` of `tf_convpar.units` reads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            found: float = getattr(units, self.name)(value)
        except ValueError as error:
            self.fail(str(error))
        return found


def _model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the argument and the options that all commands about models have."""
    for option in (
        click.option(
            "--optimizer",
            default="sgd",
            show_default=True,
            help="Keras' name, such as adam.",
        ),
        click.option(
            "--image",
            type=click.IntRange(min=1),
            help="Height and width for a model of keras.applications; its own "
            "by default.",
        ),
        _models.argument,
    ):
        function = option(function)
    return function


@click.group(name="estimate")
def command() -> None:
    """Estimate memory, mini-batch and numbers of devices.

    \b
      convpar estimate memory ResNet50 --image 64 --batch 8

    They are those of a training step, before it is run. MODEL is a .keras file,
    or a model of keras.applications by name, such as ResNet50.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)


@command.command()
@_model_options
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
@click.option("--memory", type=_Unit("size"), help="A line for the picture.")
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

    from tf_convpar.estimate import memory as of_memory

    batches = sorted(set(batch))
    with messages_only():
        found = [step.memory(n, algorithm) for n in batches]
    if png is not None:
        with messages_only():
            of_memory.draw(found, png, f"A training step of {model}", memory)
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
                    {**f.to_dict(), "measured": m and dataclasses.asdict(m)}
                    for f, m in zip(found, measured, strict=True)
                ],
            }
        )
        return
    console = Console()
    for estimate, peak in zip(found, measured, strict=True):
        console.print(f"{model}, batch {estimate.batch}", highlight=False)
        console.print(estimate.table(layers))
        _print_peak(console, estimate, peak)


@command.command()
@_model_options
@click.option(
    "--memory",
    type=_Unit("size"),
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
    from tf_convpar import estimate as guidelines
    from tf_convpar.estimate import memory as of_memory

    with messages_only():
        report: dict[str, Any] = {
            "model": model,
            "memory_bytes": memory,
            "largest": guidelines.largest_batch(
                step, memory, algorithm=algorithm
            ),
        }
    if best:
        fitting = [n for n in guidelines.BATCHES if n <= report["largest"]]
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
    click.echo(f"Largest batch: {report['largest']} images")
    if best:
        _print_batches(report)


@command.command()
@click.option(
    "--overhead",
    type=float,
    help="Seconds of a step that devices do not share, by seconds that they "
    "do: 0.05 for 5 %.",
)
@click.option("--devices", type=click.IntRange(min=1), help="How many.")
@click.option("--speedup", type=float, help="Wanted, against one device.")
@click.option("--efficiency", type=float, help="Wanted, of each device.")
@as_json
def devices(
    overhead: float | None,
    devices: int | None,
    speedup: float | None,
    efficiency: float | None,
    as_json: bool,
) -> None:
    """Say what more devices gain, in data parallelism.

    \b
      convpar estimate devices --overhead 0.05 --devices 4

    --overhead and --devices give their speedup and efficiency; --overhead and
    --speedup, the fewest devices that reach this speedup; --efficiency and
    --devices, the overhead up to which they are so efficient.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar import estimate as guidelines

    given = {
        name
        for name, value in (
            ("overhead", overhead),
            ("devices", devices),
            ("speedup", speedup),
            ("efficiency", efficiency),
        )
        if value is not None
    }
    with messages_only():
        if given == {"overhead", "speedup"}:
            devices = guidelines.devices_for(speedup or 0.0, overhead or 0.0)
        elif given == {"efficiency", "devices"}:
            overhead = guidelines.overhead_for(efficiency or 0.0, devices or 0)
        elif given != {"overhead", "devices"}:
            raise click.UsageError(
                "Expected --overhead with --devices or --speedup, or "
                "--efficiency with --devices. Received: "
                f"{', '.join(sorted(f'--{g}' for g in given)) or 'nothing'}."
            )
        count, ratio = devices or 1, overhead or 0.0
        any_overhead = math.isinf(ratio)
        report: dict[str, Any] = {
            "devices": count,
            "overhead_ratio": None if any_overhead else ratio,
            "speedup": 1.0
            if any_overhead
            else guidelines.speedup(count, ratio),
            "efficiency": (
                1 / count
                if any_overhead
                else guidelines.efficiency(count, ratio)
            ),
        }
    if as_json:
        print_json(report)
    elif any_overhead:
        click.echo(f"{count} devices: any overhead leaves that efficiency")
    else:
        click.echo(
            f"{count} devices, overhead {ratio:.2%} of one device's "
            f"computation: {report['speedup']:.2f} times as fast, each "
            f"{report['efficiency']:.1%} efficient"
        )


@command.command()
@click.option(
    "--parameters",
    type=_Unit("size"),
    required=True,
    help="Size of the model's parameters: 244MB.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    required=True,
    help="Number of workers.",
)
@click.option(
    "--link",
    type=_Unit("bytes_per_s"),
    required=True,
    help="Rate of each server's link: 10Gbit, 1.2GB.",
)
@click.option(
    "--compute",
    type=_Unit("seconds"),
    required=True,
    help="Time in which a worker computes a step: 1s, 300ms.",
)
@click.option(
    "--full-duplex",
    is_flag=True,
    help="Servers send and receive at full rate at once.",
)
@as_json
def servers(
    parameters: int,
    workers: int,
    link: float,
    compute: float,
    full_duplex: bool,
    as_json: bool,
) -> None:
    """Say how many parameter servers keep workers from waiting.

    \b
      convpar estimate servers --parameters 244MB --workers 4 \\
        --link 10Gbit --compute 1s
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar import estimate as guidelines

    with messages_only():
        found = guidelines.parameter_servers(
            parameters, workers, link, compute, full_duplex
        )
    traffic = (1 if full_duplex else 2) * parameters * workers / link / found
    report = {"servers": found, "busy_s": traffic, "compute_s": compute}
    if as_json:
        print_json(report)
    else:
        click.echo(
            f"{found} parameter server{'s'[: found > 1]}: each busy for "
            f"{traffic:.3g} s of a step's {compute:.3g} s"
        )


def _step(model: str, image: int | None, optimizer: str) -> Any:
    """The traced training step of a model."""
    with without_chatter():
        from tf_convpar.estimate.memory import Step

        with messages_only():
            return Step(_models.load(model, image), optimizer)


def _print_peak(console: Console, memory: Any, measured: Any) -> None:
    parts = ", ".join(
        f"{kind} {size / 2**20:.1f}" for kind, size in memory.peak.items()
    )
    console.print(
        f"At the peak {memory.peak_bytes / 2**20:.1f} MiB, in layer "
        f"{memory.peak_layer}: {parts}",
        highlight=False,
        soft_wrap=True,
    )
    if measured is None:
        return
    for words, estimate, found in (
        ("was asked for", memory.asked_bytes, measured.asked_bytes),
        ("handed out", memory.peak_bytes, measured.peak_bytes),
    ):
        console.print(
            f"TensorFlow's allocator {words} {found / 2**20:.1f} MiB; "
            f"estimate {estimate / 2**20:.1f}, {estimate / found - 1:+.1%}",
            highlight=False,
        )


def _print_batches(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in (
        "Batch",
        "Image (ms)",
        "Step (ms)",
        "Memory (MiB)",
        "Workspace (MiB)",
        "Not direct",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["batches"]:
        names = [n for c in row["choices"].values() for n in c.values()]
        cells = [f"{row['memory_bytes'] / 2**20:.0f}"]
        if row["step_s"] is None:
            cells = ["", "does not fit", *cells, "", ""]
        else:
            other = sum(name != "direct" for name in names)
            cells = [
                f"{row['image_s'] * 1e3:.2f}",
                f"{row['step_s'] * 1e3:.1f}",
                *cells,
                f"{row['workspace_bytes'] / 2**20:.0f}",
                f"{other} of {len(names)}",
            ]
        table.add_row(str(row["batch"]), *cells)
    Console().print(table)
