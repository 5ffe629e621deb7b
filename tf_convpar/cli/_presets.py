"""Prints the devices that are known by name."""

from __future__ import annotations

import dataclasses

import click

from tf_convpar.cli._shared import print_json

option = click.option(
    "--presets", is_flag=True, help="List devices known by name."
)


def show(as_json: bool) -> None:
    """Prints all presets, with rates, power and where these come from."""
    from rich.console import Console
    from rich.table import Table

    from tf_convpar.planner.presets import EFFICIENCY
    from tf_convpar.planner.presets import PRESETS

    if as_json:
        print_json(
            {
                name: {
                    **dataclasses.asdict(preset),
                    "efficiency": EFFICIENCY[preset.kind],
                }
                for name, preset in PRESETS.items()
            }
        )
        return
    table = Table()
    for head in ("Name", "Peak (GFLOPS)", "Taken (GFLOPS)", "Watts"):
        table.add_column(head, justify="left" if head == "Name" else "right")
    table.add_column("Device")
    for name, preset in PRESETS.items():
        taken = preset.peak_flops * EFFICIENCY[preset.kind]
        table.add_row(
            name,
            f"{preset.peak_flops / 1e9:.0f}",
            f"{taken / 1e9:.0f}",
            f"{preset.watts:g}",
            # The JSON has the whole source.
            preset.source.partition(",")[0],
        )
    Console().print(table)
