"""The option for the method of planning, and checks of other options by it."""

from __future__ import annotations

import click

MODEL = "model"
STAR = "star"

option = click.option(
    "--method",
    type=click.Choice([MODEL, STAR]),
    default=MODEL,
    show_default=True,
    help="model: all layers of a whole model, as they run; star: convolutions "
    "alone, each by filters from the chief, as in paper 1.",
)


def check(context: click.Context, method: str, **only: tuple[str, ...]) -> None:
    """Refuses options that belong to the other method.

    ```python
    check(context, method, star=("quantum",), model=("fresh",))
    ```

    Args:
        context: Context of the command.
        method: Method that was asked for.
        **only: For each method, the names of parameters that it alone has.

    Raises:
        click.UsageError: An option of the other method was given.
    """
    for other, names in only.items():
        options = given_of(context, names) if other != method else []
        if options:
            raise click.UsageError(
                f"Expected {options[0]} with --method {other} only. Received "
                f"it with --method {method}."
            )


def given_of(context: click.Context, names: tuple[str, ...]) -> list[str]:
    """The options among these parameters that were given, as they are written.

    Args:
        context: Context of the command.
        names: Names of parameters.
    """
    default = click.core.ParameterSource.DEFAULT
    return [
        parameter.opts[0]
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(context)
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) != default
    ]
