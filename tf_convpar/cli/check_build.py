"""`convpar check-build`."""

import dataclasses
import sys

import click

from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter


@click.command(name="check-build")
@as_json
def command(as_json: bool) -> None:
    """Say whether the compiled operations are in use.

    \b
      convpar check-build --json

    Exit code 0 when they are, 1 when the slower operations in pure
    TensorFlow take their place; the verdict says why.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    with without_chatter():
        from tf_convpar import ops

        report = ops.build_report()
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        for name, value in dataclasses.asdict(report).items():
            if name != "verdict":
                known = "unknown" if value is None else value
                click.echo(f"{name.replace('_', ' ') + ':':<22} {known}")
        click.echo(report.verdict)
    sys.exit(0 if report.in_use else 1)
