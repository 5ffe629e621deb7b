"""Values by the names of layers, some of which are regular expressions."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any


class ByLayer:
    """Values by names of layers; a key may be a regular expression.

    ```python
    plan = ByLayer("plan", {"stem": (3, 1), "block[1-3].*": "samples"})
    plan.find("block2_conv")  # "samples"
    plan.unused("'vgg16'", ["stem"])  # says that "block[1-3].*" stands for none
    ```

    Args:
        argument: Name of the user's argument, for errors.
        values: Values by names of layers, or by regular expressions.

    Raises:
        ValueError: A key is no regular expression.
    """

    def __init__(self, argument: str, values: Mapping[str, Any]) -> None:
        self._argument = argument
        self._values = values
        self._patterns = {}
        for name in values:
            try:
                self._patterns[name] = re.compile(name)
            except re.error as error:
                raise ValueError(
                    f"Expected the keys of `{argument}` to be names of layers "
                    f"or regular expressions. Received: {name!r}: {error}."
                ) from error

    def values(self) -> list[Any]:
        """All values."""
        return list(self._values.values())

    def names(self, name: str) -> bool:
        """Whether a key stands for this layer."""
        return self.key(name) is not None

    def find(self, name: str) -> Any:
        """The value for a layer; None if there is none."""
        key = self.key(name)
        return None if key is None else self._values[key]

    def key(self, name: str) -> str | None:
        """The key that stands for a layer; None if there is none.

        Raises:
            ValueError: Several do.
        """
        if name in self._values:
            return name
        matching = [k for k, p in self._patterns.items() if p.fullmatch(name)]
        if len(matching) > 1:
            raise ValueError(
                f"Expected one key of `{self._argument}` for layer '{name}'. "
                f"Received: {matching}, all of which match."
            )
        return matching[0] if matching else None

    def unused(self, model: str, layers: Collection[str]) -> str | None:
        """Says which keys stand for none of these layers; None if all do.

        Args:
            model: The model in words, such as "'vgg16'".
            layers: Names of its convolutions.
        """
        used = {self.key(name) for name in layers}
        unused = [key for key in self._values if key not in used]
        if not unused:
            return None
        return (
            f"Expected each key of `{self._argument}` to stand for a "
            f"convolution of {model}: one of {list(layers)}. Received: "
            f"{unused}, which stand for none."
        )
