"""Commands of two planners, told apart by `--method`."""

from __future__ import annotations

from typing import Any

import click

MODEL = "model"
STAR = "star"

option = click.option(
    "--method",
    type=click.Choice([MODEL, STAR]),
    default=MODEL,
    show_default=True,
    help="model: all layers of a whole model, as they run; star: convolutions "
    "alone, each by filters from the chief, as in paper 1. It has other "
    "options: --method star --help.",
)


class ByMethod(click.Command):
    """A command that becomes another one if `--method star` is given.

    Each of the two has its own options and its own help.

    ```python
    @click.command(name="simulate", cls=ByMethod, star=_simulate_star.command)
    @_method.option
    def command(method, ...): ...
    ```

    Args:
        star: The other command, which has the option `--method` too.
    """

    def __init__(self, *args: Any, star: click.Command, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._star = star

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **extra: Any
    ) -> click.Context:
        if self._is_star(args):
            return self._star.make_context(info_name, args, *rest, **extra)
        return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.command is not self:
            return ctx.command.invoke(ctx)
        return super().invoke(ctx)

    def _is_star(self, args: list[str]) -> bool:
        given = [f"--method={STAR}" in args]
        for name, value in zip(args, args[1:], strict=False):
            given.append((name, value) == ("--method", STAR))
        return any(given)
