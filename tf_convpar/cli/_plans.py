"""Shows plans, and writes them to files, for several commands."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tf_convpar.cli._shared import Mistake
from tf_convpar.cli._shared import OutputFile
from tf_convpar.cli._shared import messages_only
from tf_convpar.cli._shared import print_json

if TYPE_CHECKING:
    from tf_convpar.planner import Way
    from tf_convpar.plans import Plan

_OUTPUT = OutputFile()

output = click.option(
    "--output", type=_OUTPUT, help="Write the plan here, as JSON."
)
png = click.option(
    "--png", type=_OUTPUT, help="Draw here who is busy when in the step."
)


def show(
    plan: Plan,
    output: pathlib.Path | None,
    png: pathlib.Path | None,
    as_json: bool,
    ways: Sequence[Way] = (),
) -> None:
    """Writes a plan, draws it, and prints it as a table or as JSON.

    Args:
        plan: The plan.
        output: The file to write it to; None for none.
        png: The file to draw it to; None for none.
        as_json: Whether to print JSON instead of a table.
        ways: Ways to train to compare with the plan, the best first.
    """
    from tf_convpar import plans

    with messages_only():
        if output is not None:
            with _writing(output):
                plan.save(output)
        if png is not None:
            with _writing(png):
                plans.draw(plan, png)
    if as_json:
        content = plan.to_dict()
        if ways:
            content["ways"] = [way.to_dict() for way in ways]
        print_json(content)
        return
    from rich.console import Console

    console = Console()
    console.print(plans.table(plan))
    console.print(plan.reason, highlight=False, markup=False)
    if len(ways) > 1:
        from tf_convpar import planner

        console.print()
        console.print(planner.way_table(ways), highlight=False)
        console.print(planner.legend(ways), highlight=False, markup=False)
        console.print(planner.advice(ways), highlight=False, markup=False)
    for path in (output, png):
        if path is not None:
            click.echo(f"Written: {path}")


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    """Says which file could not be written, if writing it within fails."""
    try:
        yield
    except OSError as error:
        raise Mistake(
            f"Could not write {path}: {error.strerror or error}."
        ) from error
