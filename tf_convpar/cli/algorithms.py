"""`convpar algorithms`."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

import click

from tf_convpar.cli import _measuring
from tf_convpar.cli import _models
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
@_measuring.batch
@_models.image
@_measuring.threads
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
    _measuring.set_threads(threads)
    loaded = _models.load(model, image)
    from rich.console import Console

    console = Console(stderr=True)
    found = _consult(loaded, batch, wanted, refresh, console)
    report = {
        "model": model,
        "batch": batch,
        "threads": threads,
        "convolutions": found,
        "totals": _totals(found, wanted),
        "step": (
            _step(loaded, batch, console)
            if step and set(wanted) == set(PASSES)
            else None
        ),
    }
    if as_json:
        print_json(report)
    else:
        _print_table(report, Console())


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
    found = []
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
            raced = algorithms.raced(geometry)
            records = algorithms.consult(
                raced, None, passes, refresh=refresh, report=report
            )
            progress.advance(task)
            found.append(
                {
                    "convolution": text,
                    "layers": names,
                    "geometry": dataclasses.asdict(geometry),
                    "images": raced.batch,
                    "passes": {
                        which: _of_all(record, which, geometry, raced)
                        for which, record in records.items()
                    },
                }
            )
    return found


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


def _of_all(record: Any, which: str, geometry: Any, raced: Any) -> Any:
    """A record as plain data, with times and memory for the whole batch.

    The algorithms may have raced with a part of the batch only, and with widths
    near to these.
    """
    from tf_convpar.algorithms import named

    found = dataclasses.asdict(record)
    for candidate in found["candidates"]:
        algorithm = named(candidate["name"], geometry)
        candidate["workspace_bytes"] = algorithm.workspace(geometry, which)
        for name in ("time_ms", "spread_ms"):
            if candidate[name] is not None:
                more = geometry.multiplications / raced.multiplications
                candidate[name] *= more
    return found


def _totals(
    found: list[dict[str, Any]], passes: tuple[str, ...]
) -> dict[str, Any]:
    """Sums of the measured times over all layers, by pass and in all."""
    totals = {}
    for which in passes:
        direct = chosen = 0.0
        for convolution in found:
            record = convolution["passes"][which]
            times = {c["name"]: c["time_ms"] for c in record["candidates"]}
            own = times.get(record["chosen"])
            if times.get("direct") is not None and own is not None:
                count = len(convolution["layers"])
                direct += count * times["direct"]
                chosen += count * own
        totals[which] = {"direct_ms": direct, "chosen_ms": chosen}
    totals["all"] = {
        name: sum(total[name] for total in totals.values())
        for name in ("direct_ms", "chosen_ms")
    }
    for total in totals.values():
        total["gain"] = (
            total["direct_ms"] / total["chosen_ms"]
            if total["chosen_ms"]
            else 1.0
        )
    return totals


def _print_table(report: dict[str, Any], console: Console) -> None:
    """A table for each convolution, all of one form, for 80 columns."""
    from rich.markup import escape
    from rich.table import Table

    def table() -> Table:
        made = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        made.add_column(width=18, no_wrap=True)
        for width in (8, 7, 9, 6):
            made.add_column(width=width, justify="right", no_wrap=True)
        made.add_column(overflow="fold")
        return made

    console.print(
        f"[bold]{escape(report['model'])}, batch {report['batch']}[/bold]",
        highlight=False,
    )
    heads = table()
    heads.add_row("", "Time", "Of", "Workspace", "", "")
    heads.add_row("Algorithm", "(ms)", "direct", "(MiB)", "Error", "")
    console.print(heads)
    for convolution in report["convolutions"]:
        text = escape(convolution["convolution"])
        if len(convolution["layers"]) > 1:
            text += f" ({len(convolution['layers'])} layers)"
        console.print(f"\n[bold]{text}[/bold]", highlight=False)
        rules = {r["rule"] for r in convolution["passes"].values()}
        if len(rules) == 1 and None not in rules:
            console.print(f"direct: {rules.pop()}", highlight=False)
            continue
        rows = table()
        for which, record in convolution["passes"].items():
            rule = f"direct: {record['rule']}" if record["rule"] else ""
            rows.add_row(_words(which), *[""] * 4, rule)
            for candidate in record["candidates"]:
                chosen = candidate["name"] == record["chosen"]
                rows.add_row(
                    f"  {candidate['name']}",
                    *_numbers(candidate),
                    "chosen" if chosen else _why(candidate),
                    style="bold" if chosen else None,
                )
        console.print(rows, highlight=False)
    console.print()
    for which, total in report["totals"].items():
        if total["direct_ms"]:
            console.print(
                f"{_words(which)}: direct {total['direct_ms']:.1f} ms, chosen "
                f"{total['chosen_ms']:.1f} ms, {total['gain']:.2f} times as "
                "fast, where measured",
                highlight=False,
            )
    if step := report["step"]:
        console.print(
            "A training step on this machine alone: "
            f"{step['keras_ms']:.0f} ms in Keras, {step['auto_ms']:.0f} ms by "
            'parallelize(model, algorithm="auto"): '
            f"[bold]{step['gain']:.2f} times as fast[/bold].",
            highlight=False,
        )


def _words(which: str) -> str:
    return which.replace("_", " ")


def _why(candidate: dict[str, Any]) -> str:
    """Why a candidate was dropped, without the details that JSON has."""
    return str(candidate["dropped"] or "").partition(":")[0]


def _numbers(candidate: dict[str, Any]) -> list[str]:
    formats = (
        ("time_ms", "{:.2f}", 1.0),
        ("ratio", "{:.2f}", 1.0),
        ("workspace_bytes", "{:.1f}", 2.0**20),
        ("error", "{:.0e}", 1.0),
    )
    return [
        "" if candidate[name] is None else form.format(candidate[name] / unit)
        for name, form, unit in formats
    ]
