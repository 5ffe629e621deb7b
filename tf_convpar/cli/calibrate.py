"""`convpar calibrate`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter

if TYPE_CHECKING:
    from tf_convpar.planner.star import Calibration


@click.command(name="calibrate")
@click.argument("model")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Images in a step.",
)
@click.option(
    "--image",
    type=click.IntRange(min=1),
    help="Height and width for a model of keras.applications; its own by "
    "default.",
)
@click.option(
    "--throughput",
    default="auto",
    show_default=True,
    metavar="auto|eval|dry_run|RATES",
    help="auto: from the cache, or measured and kept; eval: measured and "
    "kept; dry_run: measured only; RATES: not measured but given, one for "
    'each device: "200GFLOPS,10TFLOPS".',
)
@click.option(
    "--quantum",
    type=click.IntRange(min=1),
    help="Kernels that plans keep together; found out by default.",
)
@click.option(
    "--wire-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="The dtype in which feature maps travel.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads of one operation here; one for each core by default.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    help="Where to write the calibration, for `convpar plan` and `simulate`.",
)
@as_json
def command(
    model: str,
    batch: int,
    image: int | None,
    throughput: str,
    quantum: int | None,
    wire_dtype: str | None,
    threads: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Measure what devices and links take for a model's convolutions.

    MODEL is a .keras file, or a model of keras.applications by name. The
    devices are those of the cluster in TF_CONFIG, whose other tasks run
    `convpar worker`; without it, those of this machine.
    """
    with without_chatter():
        import tensorflow as tf

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        with messages_only():
            from tf_convpar.cli import _models
            from tf_convpar.planner import star as planner
            from tf_convpar.strategy.strategy import ConvParallelStrategy

            # Variables made before the cluster is joined would be lost.
            strategy = ConvParallelStrategy(wire_dtype=wire_dtype)
            loaded = _models.load(model, image, compiled=True)
    with _progress() as report, messages_only():
        found = planner.calibrate(
            loaded,
            strategy,
            batch,
            throughput=throughput,
            quantum=quantum,
            report=report,
        )
        if output is not None:
            planner.save(found, output)
    if as_json:
        print_json(planner.to_json(found))
    else:
        _print(found, output)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A bar on stderr, drawn between measurements and never during one."""
    from rich.console import Console
    from rich.progress import BarColumn
    from rich.progress import Progress
    from rich.progress import TextColumn
    from rich.progress import TimeElapsedColumn

    console = Console(stderr=True)
    progress = Progress(
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    with progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # How much there is to measure shows only as it goes.
        task = progress.add_task("", total=None)

        def report(name: str) -> None:
            progress.update(task, description=name, refresh=True)

        yield report
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning | UserWarning):
            console.print(f"Warning: {warning.message}", style="yellow")


def _print(found: Calibration, output: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("layer", "kernels", *(_short(d.name) for d in found.devices))
    for convolution in found.network:
        times = [d.times[convolution.name] for d in found.devices]
        for i, width in enumerate(times[0].filters):
            table.add_row(
                convolution.name if i == 0 else "",
                str(width),
                *(
                    " + ".join(f"{1e3 * s[i]:.1f}" for s in _passes(t))
                    for t in times
                ),
            )
    console.print(table)
    console.print("ms: forward + input gradient + kernel gradient")
    links = Table("link", "rate", "latency")
    for link in found.links:
        links.add_row(
            f"{_short(link.source)} -> {_short(link.target)}",
            f"{link.bytes_per_s / 1e6:.0f} MB/s",
            f"{1e3 * link.latency_s:.2f} ms",
        )
    if found.links:
        console.print(links)
    console.print(
        f"Rest of a step: {1e3 * found.rest_s:.1f} ms. Kernels in multiples "
        f"of {found.quantum}. Unsteady: {found.facts.get('unsteady', '-')}."
    )
    if output is not None:
        console.print(f"Written to {output}.", markup=False)


def _passes(times: Any) -> tuple[tuple[float, ...], ...]:
    return (times.forward, times.input_gradient, times.kernel_gradient)


def _short(device: str) -> str:
    """`worker 0, CPU:0`, and `CPU:0` of this program alone."""
    parts = dict(
        part.partition(":")[::2] for part in device.split("/") if ":" in part
    )
    kind = device.rpartition("device:")[2]
    if parts.get("job", "localhost") == "localhost":
        return kind
    return f"{parts['job']} {parts.get('task', '0')}, {kind}"
