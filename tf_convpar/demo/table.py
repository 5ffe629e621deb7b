"""The demo's report for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tf_convpar import plans
from tf_convpar.demo.report import Report
from tf_convpar.demo.settings import PLAN
from tf_convpar.demo.settings import Settings
from tf_convpar.machines import short


def print_report(report: Report, settings: Settings, console: Console) -> None:
    """Prints the plan, the figures, what bounds them, and where files are."""
    console.print(plans.table(plans.load(settings.output / PLAN)))
    table = Table(
        title=f"\nResNet-9, {report.weights / 1e6:.1f} million weights, "
        f"{report.batch_size} images a step, the same "
        f"{len(report.plain.losses)} steps",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for column in (
        "plain Keras\none device",
        "parallelize\none device",
        f"parallelize\n{len(report.devices)} devices",
    ):
        table.add_column(column, justify="right")
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    console.print("\n".join(_words(report)), highlight=False)
    console.print(
        f"Pictures, timeline for ui.perfetto.dev and plan: {settings.output}/",
        highlight=False,
        soft_wrap=True,
    )


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    plain, one, many = report.plain, report.one, report.many
    for label, index in (("first", 0), ("last", -1)):
        losses = (t.losses[index] for t in (plain, one, many))
        yield f"loss of the {label} step", *(f"{loss:.5f}" for loss in losses)
    yield (
        "losses differ at most by",
        "",
        f"{report.differs(one):.0e}",
        f"{report.differs(many):.0e}",
    )
    times = (f"{t.step_s * 1e3:.0f} ms" for t in (plain, one, many))
    yield "step time, median", *times
    if report.predicted_s is not None:
        predicted = f"{report.predicted_s * 1e3:.0f} ms"
        yield "step time, by the plan", "", "", predicted
    yield (
        "times as fast as plain Keras",
        "",
        f"{report.faster(one):.2f}",
        f"{report.faster(many):.2f}",
    )
    yield "times as fast as on one device", "", "", f"{report.adds:.2f}"
    measured = f"{report.measured_bytes / 1e6:.2f} MB"
    yield f"bytes a step, on {report.counted_on}", "", "", measured
    theory = f"{report.theory_bytes / 1e6:.2f} MB"
    yield "bytes a step, by theory", "", "", theory


def _words(report: Report) -> Iterator[str]:
    names = [short(name) for name in report.devices]
    listed = ", ".join(
        f"{part:.0%} of one for {name.rpartition(' ')[0]}"
        for name, part in zip(names[1:], report.parts[1:], strict=True)
    )
    count = min(report.cores, 2)
    has = "a core for the chief" if count > 1 else "one core for all"
    yield (
        f"The devices are processes of this machine: {has}, {listed}, which "
        f"share {'another' if count > 1 else 'it'}. Splitting can gain "
        f"{count}x at most."
    )
    idle = [short(d) for d in report.devices if d not in report.used]
    if idle and len(report.used) > 1:
        yield (
            f"The plan leaves {', '.join(idle)} out: with it, steps are "
            "predicted to take longer."
        )
    if len(report.used) < 2:
        yield f"The plan splits nothing. {report.reason}"
    elif report.many.step_s > report.one.step_s:
        yield (
            "Here the split is slower than one device: what devices wait for "
            "one another is more than they save. A worker that has used its "
            "part of a core also answers late, and all share caches and memory."
        )
