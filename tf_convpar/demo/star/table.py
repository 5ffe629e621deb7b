"""A demo's report for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tf_convpar.demo.settings import Settings
from tf_convpar.demo.star.report import Report
from tf_convpar.machines import can_pin

_CORE = "bound to one core" if can_pin() else "with two threads"


def print_report(report: Report, settings: Settings, console: Console) -> None:
    """Prints the figures as a table, their bounds, and where the files are."""
    table = Table(
        title="The same training, on one device and split",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for column in ("one device", f"{report.devices} devices", ""):
        table.add_column(column, justify="right")
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    kernels = "; ".join(
        f"{sum(sizes)} = {' + '.join(map(str, sizes))}"
        for sizes in report.shards.values()
    )
    bound = min(report.devices, report.cores)
    console.print(
        f"Kernels, chief first: {kernels}. They travel in "
        f"{report.wire_dtype}.\n"
        f"Every device is a process {_CORE}, in both runs. This machine has "
        f"{report.cores} for {report.devices} of them: no speedup here can "
        f"exceed {bound}x.\n"
        f"{_why(report)}, and training lets that grow.",
        highlight=False,
    )
    console.print(
        f"Pictures, timeline for ui.perfetto.dev and exported model: "
        f"{settings.output}/",
        highlight=False,
        soft_wrap=True,
    )


def _why(report: Report) -> str:
    """Why the losses of both runs are not the same bits."""
    if report.wire_dtype == "float32":
        return "Sums in another order differ in their last bits"
    return f"What travels is rounded to {report.wire_dtype}"


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    one, split, found = report.one, report.split, report.to_dict()
    yield (
        "loss of the last step",
        f"{one.losses[-1]:.5f}",
        f"{split.losses[-1]:.5f}",
        "",
    )
    yield (
        "held-out loss",
        f"{one.held_out_loss:.5f}",
        f"{split.held_out_loss:.5f}",
        "",
    )
    yield (
        "held-out accuracy",
        f"{one.held_out_accuracy:.1%}",
        f"{split.held_out_accuracy:.1%}",
        "",
    )
    for steps in (10, len(one.losses)):
        yield (
            f"losses differ, {steps} steps",
            "",
            f"{report.differences[:steps].max():.0e}",
            "at most, relative",
        )
    yield (
        "step time, median",
        f"{one.step_s * 1e3:.0f} ms",
        f"{split.step_s * 1e3:.0f} ms",
        f"speedup {report.speedup:.2f}x",
    )
    yield (
        "bytes a step, measured",
        "",
        f"{report.measured_bytes / 1e6:.2f} MB",
        f"median, on {report.counted_on}",
    )
    ratio = found["bytes_ratio"]
    yield (
        "bytes a step, by theory",
        "",
        f"{report.theory_bytes / 1e6:.2f} MB",
        "" if ratio is None else f"measured: {ratio:.4f} of it",
    )
    yield (
        "export reloaded, differs",
        "",
        f"{report.export_difference:.0e}",
        "at most, logits",
    )
