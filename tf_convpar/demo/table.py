"""The demo's report for people."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tf_convpar import plans
from tf_convpar.demo.report import Report
from tf_convpar.demo.report import Trained
from tf_convpar.demo.settings import PLAN
from tf_convpar.demo.settings import Settings
from tf_convpar.machines import can_pin
from tf_convpar.machines import short

# Steps in which last bits have not had the time to become more.
_FEW = 10


def print_report(report: Report, settings: Settings, console: Console) -> None:
    """Prints the plan, the figures, what bounds them, and where files are."""
    if not settings.star:
        console.print(plans.table(plans.load(settings.output / PLAN)))
        console.print()
    table = Table(
        title=f"{report.network}, {report.weights / 1e6:.1f} million "
        f"weights, {report.batch_size} images a step, the same "
        f"{len(report.plain.losses)} steps",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for training in report.trainings:
        table.add_column(f"{training.name}\n{training.on}", justify="right")
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    console.print("\n".join(_words(report, settings)), highlight=False)
    console.print(
        "Pictures, timeline for ui.perfetto.dev, exported model"
        f"{'' if settings.star else ' and plan'}: {settings.output}/",
        highlight=False,
        soft_wrap=True,
    )


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    steps = len(report.plain.losses)

    def row(label: str, text: Callable[[Trained], str]) -> tuple[str, ...]:
        return label, *map(text, report.trainings)

    def some(
        label: str,
        which: Callable[[Trained], bool],
        text: Callable[[Trained], str],
    ) -> tuple[str, ...]:
        return row(label, lambda t: text(t) if which(t) else "")

    def split(label: str, text: str) -> tuple[str, ...]:
        return some(label, lambda t: t is report.split, lambda t: text)

    def same(training: Trained) -> bool:
        """Whether it makes the steps of plain Keras, another way."""
        return training is not report.plain and not training.replicas

    yield row("loss of the first step", lambda t: f"{t.losses[0]:.5f}")
    yield row("loss of the last step", lambda t: f"{t.losses[-1]:.5f}")
    if steps > _FEW:
        yield some(
            f"losses differ at most by, {_FEW} steps",
            same,
            lambda t: f"{report.differs(t, _FEW):.0e}",
        )
    yield some(
        f"losses differ at most by, {steps} steps",
        same,
        lambda t: f"{report.differs(t):.0e}",
    )
    if steps > _FEW:  # After fewer all are guesses.
        yield row("held-out loss", lambda t: f"{t.held_out_loss:.5f}")
        yield row("held-out accuracy", lambda t: f"{t.held_out_accuracy:.1%}")
    yield row("step time, median", lambda t: f"{t.step_s * 1e3:.0f} ms")
    if report.predicted_s is not None:
        predicted = f"{report.predicted_s * 1e3:.0f} ms"
        yield split("step time, by the plan", predicted)
    yield some(
        "times as fast as plain Keras",
        lambda t: t is not report.plain,
        lambda t: f"{report.faster(t):.2f}",
    )
    if report.one is not report.plain:
        yield some(
            "times as fast as on one device",
            lambda t: t.devices > 1,
            lambda t: f"{report.adds(t):.2f}",
        )
    measured = f"{report.measured_bytes / 1e6:.2f} MB"
    yield split(f"bytes a step, on {report.counted_on}", measured)
    theory = f"{report.theory_bytes / 1e6:.2f} MB"
    yield split("bytes a step, by theory", theory)
    if report.bytes_ratio is not None:
        yield split("bytes, measured by theory", f"{report.bytes_ratio:.4f}")
    yield split("export differs at most by", f"{report.export_difference:.0e}")


def _words(report: Report, settings: Settings) -> Iterator[str]:
    if settings.star:
        counts = "; ".join(
            f"{sum(sizes)} = {' + '.join(map(str, sizes))}"
            for sizes in report.kernels.values()
        )
        yield f"Kernels, chief first: {counts}."
    parts = ", ".join(
        f"{short(name).rpartition(' ')[0]} {part:.0%}"
        for name, part in zip(report.devices, report.parts, strict=True)
    )
    bound = "bound to one core" if can_pin() else "with two threads"
    yield (
        f"Every device is a process {bound}. While all compute, they have of "
        f"a core, at most: {parts}. This machine has {report.cores}: splitting "
        f"can gain {report.bound:g}x. What nobody uses of a core, a program "
        "that gives way keeps busy, as neighbours would."
    )
    if not report.is_split:
        yield f"The plan splits nothing. {report.reason}"
    elif idle := [short(d) for d in report.devices if d not in report.used]:
        yield (
            f"The plan leaves {', '.join(idle)} out: with it, steps are "
            "predicted to take longer."
        )
    if report.is_split and report.adds(report.split) < 1:
        yield (
            "Here the split is slower than one device: what devices wait for "
            "one another is more than they save. A worker that has used its "
            "part of a core also answers late, and all share caches and memory."
        )
    if any(training.replicas for training in report.trainings):
        yield (
            "SyncSGD keeps a model on each device and adds up their gradients. "
            "Each normalizes by its own images, which come in another order."
        )
    yield f"{_why(report)}, and training lets that grow."


def _why(report: Report) -> str:
    """Why the losses of the trainings are not the same bits."""
    if report.wire_dtype == "float32":
        return "Sums in another order differ in their last bits"
    return f"What travels is rounded to {report.wire_dtype}"
