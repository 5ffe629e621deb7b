"""`convpar top`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from tf_convpar.files import Running

_EVERY_S = 0.5
# Seconds after which a training has been silent for long.
_SILENT_S = 5.0


@click.command(name="top")
@click.option(
    "--once", is_flag=True, help="Print what there is now; so does a pipe."
)
@click.option(
    "--last-step",
    metavar="LAUNCH",
    hidden=True,
    help="Print when a launch has made a step; what `launch --ssh` asks for.",
)
@as_json
def command(once: bool, last_step: str | None, as_json: bool) -> None:
    """Show what the devices of running trainings do, until Ctrl-C.

    \b
      convpar top
      convpar top --once

    It shows trainings of this user whose chief is on this machine, and whose
    `fit` has the callback `convpar.callbacks.Monitor()`. A device is busy for
    the part of the time in which its cores work for the training, and waits
    for the rest: for other devices, or for data. Bytes are those of its
    machine, whoever sends them.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    from tf_convpar import files

    if last_step is not None:
        print_json(files.last_step(last_step))
        return
    if as_json:
        print_json([one.to_dict() for one in files.running_trainings()])
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if once or not sys.stdout.isatty():
        console.print(_view(files.running_trainings()))
        return
    try:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            while True:
                live.update(_view(files.running_trainings()), refresh=True)
                time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        # That is how it ends.
        return


def _view(trainings: list[Running]) -> Group:
    from rich.console import Group

    if not trainings:
        return Group(
            "No training of yours runs here that says what it does. Give its "
            "`fit` the callback convpar.callbacks.Monitor(); it says the first "
            "after a second of steps."
        )
    return Group(
        *(part for training in trainings for part in _training_view(training))
    )


def _training_view(training: Running) -> tuple[str, Table]:
    from rich.markup import escape
    from rich.table import Table

    from tf_convpar import files

    words = [
        f"[bold]{escape(training.model)}[/bold], process {training.pid}: "
        f"epoch {training.epoch}, step {training.step}, "
        f"{training.step_s * 1e3:.0f} ms a step",
        *(
            f"{escape(name)} {value:.4g}"
            for name, value in training.logs.items()
        ),
    ]
    silent_s = files.age_s(training)
    if silent_s > _SILENT_S:
        words.append(f"silent for {silent_s:.0f} s")
    table = Table()
    table.add_column("Device")
    for name in ("Busy", "Waiting", "MB/s in", "MB/s out"):
        table.add_column(name, justify="right")
    for device in training.devices:
        busy = device.busy
        table.add_row(
            device.name,
            "-" if busy is None else f"{busy:.0%}",
            "-" if busy is None else f"{1 - busy:.0%}",
            _rate(device.received),
            _rate(device.sent),
        )
    return ", ".join(words), table


def _rate(bytes_a_second: float | None) -> str:
    return "-" if bytes_a_second is None else f"{bytes_a_second / 1e6:.1f}"
