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

    from tf_convpar import planner
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
    Console().print(planner.preset_table())
