"""A demo's report for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tf_convpar.demo.cores import can_pin
from tf_convpar.demo.report import Report
from tf_convpar.demo.settings import Settings

_CORE = "bound to one core" if can_pin() else "with two threads"


def print_report(report: Report, settings: Settings, console: Console) -> None:
    """Prints the table, what bounds its figures, and where the files are."""
    one, split, found = report.one, report.split, report.to_dict()
    table = Table(title="One device, and the same training split")
    table.title_justify = "left"
    table.add_column("")
    for column in ("one device", f"{report.devices} devices", ""):
        table.add_column(column, justify="right")
    table.add_row(
        "training loss, last step",
        f"{one.losses[-1]:.6f}",
        f"{split.losses[-1]:.6f}",
        "",
    )
    table.add_row(
        "held-out loss",
        f"{one.held_out_loss:.6f}",
        f"{split.held_out_loss:.6f}",
        "",
    )
    table.add_row(
        "held-out accuracy",
        f"{one.held_out_accuracy:.2%}",
        f"{split.held_out_accuracy:.2%}",
        "",
    )
    table.add_row(
        "largest difference of a step's losses",
        "",
        f"{found['largest_loss_difference']:.1e}",
        f"{found['largest_relative_loss_difference']:.1e} relative",
    )
    table.add_row(
        "step time, median",
        f"{one.step_s * 1e3:.0f} ms",
        f"{split.step_s * 1e3:.0f} ms",
        f"speedup {report.speedup:.2f}x",
    )
    table.add_row(
        "bytes on the wire in a step, measured",
        "0",
        f"{report.measured_bytes / 1e6:.2f} MB",
        "",
    )
    ratio = found["bytes_ratio"]
    table.add_row(
        "bytes on the wire in a step, by theory",
        "0",
        f"{report.theory_bytes / 1e6:.2f} MB",
        "" if ratio is None else f"measured / theory {ratio:.4f}",
    )
    table.add_row(
        "export reloaded: largest difference",
        "",
        f"{report.export_difference:.1e}",
        "",
    )
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
        f"exceed {bound}x.",
        highlight=False,
    )
    console.print(
        f"Pictures, timeline for ui.perfetto.dev and exported model: "
        f"{settings.output}/",
        highlight=False,
        soft_wrap=True,
    )
