"""JSON files whose every field is checked when they are read.

Errors name the file, the place in it, what was expected and what is there:

    Expected a number, at least 0, at devices[1].times.conv2d.forward[3] of
    cluster.json. Received: -0.1.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any
from typing import NoReturn

from tf_convpar.files._whole import replace

# Layers and devices have names like these; others are quoted in a path.
_PLAIN = re.compile(r"[\w/-]+")


class Node:
    """A value in a file, and where it is.

    Attributes:
        value: As `json` reads it.
        path: `"devices[1].name"`; empty for the whole file.
        file: Its name, for messages.
    """

    def __init__(self, value: Any, path: str, file: str) -> None:
        self.value = value
        self.path = path
        self.file = file

    def fail(self, expected: str, received: str | None = None) -> NoReturn:
        """Raises ValueError: something else was expected here."""
        place = f" at {self.path}" if self.path else ""
        found = _shown(self.value) if received is None else received
        raise ValueError(
            f"Expected {expected}{place} of {self.file}. Received: {found}."
        )

    def children(self) -> dict[str, Node]:
        """The fields of an object, whatever their names."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        return {
            name: Node(value, self._below(name), self.file)
            for name, value in self.value.items()
        }

    def fields(self, *names: str) -> list[Node]:
        """The fields of an object that has these and no others."""
        children = self.children()
        missing = [name for name in names if name not in children]
        unknown = [name for name in children if name not in names]
        if missing or unknown:
            words = [f"no {name!r}" for name in missing]
            words += [f"an unknown {name!r}" for name in unknown]
            self.fail(f"the fields {', '.join(names)}", ", ".join(words))
        return [children[name] for name in names]

    def items(self, at_least: int = 0) -> list[Node]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            self.fail("an array")
        if len(self.value) < at_least:
            self.fail(f"an array of at least {at_least}")
        return [
            Node(value, f"{self.path}[{i}]", self.file)
            for i, value in enumerate(self.value)
        ]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            self.fail("a string")
        return str(self.value)

    def name(self) -> str:
        """A string that is not empty."""
        return self.text() or self.fail("a name")

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return bool(self.value)

    def integer(self, at_least: int = 0) -> int:
        """A whole number."""
        value = self.value
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or value < at_least:
            self.fail(f"a whole number, at least {at_least},")
        return int(value)

    def number(self, above: float | None = None) -> float:
        """A finite number, at least 0, or more than `above`."""
        value = self.value
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                number = float(value)
        low = number < 0 if above is None else number <= above
        if not math.isfinite(number) or low:
            wanted = "at least 0" if above is None else f"above {above:g}"
            self.fail(f"a number, {wanted},")
        return number

    def integers(self, at_least: int = 0) -> tuple[int, ...]:
        """An array of whole numbers."""
        return tuple(item.integer(at_least) for item in self.items())

    def numbers(self) -> tuple[float, ...]:
        """An array of finite numbers, none negative."""
        return tuple(item.number() for item in self.items())

    def or_none(self) -> Node | None:
        """This, unless it is null."""
        return None if self.value is None else self

    def _below(self, name: str) -> str:
        if not _PLAIN.fullmatch(name):
            return f"{self.path}[{json.dumps(name)}]"
        return f"{self.path}.{name}" if self.path else name


def read(path: str | os.PathLike[str]) -> Node:
    """What a JSON file holds.

    Raises:
        ValueError: It is no JSON, or it says something twice.
        OSError: It cannot be read.
    """
    text = pathlib.Path(path).read_bytes()
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected JSON in {os.fspath(path)}. Received: {error}."
        ) from error
    return Node(value, "", os.fspath(path))


def header(node: Node, kind: str, form: int, again: str) -> None:
    """Checks which kind of file it is, and of which version.

    Args:
        node: The whole file.
        kind: What its `"kind"` must be.
        form: What its `"format"` must be.
        again: How to get a new one: `"Calibrate again"`.
    """
    children = node.children()
    found = children["kind"].value if "kind" in children else None
    if found != kind:
        node.fail(f"a {kind}: a file", f"one whose kind is {_shown(found)}")
    found = children["format"].value if "format" in children else None
    if isinstance(found, bool) or found != form:
        node.fail(
            f"format {form}",
            f"format {_shown(found)}, of another version of this package. "
            f"{again}",
        )


def distinct(nodes: Sequence[Node], what: str) -> None:
    """Checks that no two nodes hold the same."""
    seen: list[Any] = []
    for node in nodes:
        if node.value in seen:
            node.fail(f"distinct {what}", f"{_shown(node.value)} a second time")
        seen.append(node.value)


def write(value: Any, path: str | os.PathLike[str]) -> None:
    """Writes a JSON file whole or not at all."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    replace(path, text.encode())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {name!r} a second time in an object")
        found[name] = value
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
