"""Options with units, such as 8GiB, 10Gbit or 300ms."""

from __future__ import annotations

from typing import Any

import click

from tf_convpar import units


class Unit(click.ParamType):
    """A value that the function `name` of `tf_convpar.units` reads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            number: float = getattr(units, self.name)(value)
        except ValueError as error:
            self.fail(str(error))
        return number
