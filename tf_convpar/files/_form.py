"""JSON files whose form is a dataclass."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import pathlib
from typing import Any
from typing import Generic
from typing import TypeVar

from tf_convpar.files._checked import check_depth
from tf_convpar.files._checked import checked
from tf_convpar.files._checked import shown
from tf_convpar.files._whole import whole

T = TypeVar("T")


class Form(Generic[T]):
    """A kind of file: a dataclass, beside its kind and the form's version.

    ```python
    FORM = Form(Calibration, "calibration", 4, "Measure again")
    FORM.save(calibration, "cluster.json")
    FORM.load("cluster.json") == calibration  # True
    ```

    Args:
        content: The dataclass, of `Checked`.
        kind: The file's field `"kind"`.
        version: Its field `"format"`.
        again: How to get one of this version.
    """

    def __init__(
        self, content: type[T], kind: str, version: int, again: str
    ) -> None:
        self._content = content
        self._header = {"kind": kind, "format": version}
        self._again = again

    def load(self, path: str | os.PathLike[str]) -> T:
        """Reads a file that `save` wrote, and that people may have edited.

        Raises:
            ValueError: The file is truncated, old, edited to something
                impossible, or of another kind. The message names the file,
                the place in it, what was expected and what is there.
            OSError: The file cannot be read.
        """
        return self.from_json(read_json(path), os.fspath(path))

    def save(self, value: T, path: str | os.PathLike[str]) -> None:
        """Writes a file whole or not at all.

        Raises:
            ValueError: It is one that `load` would refuse; nothing is written.
            OSError: The file cannot be written.
        """
        text = json.dumps(self.to_json(value), indent=1) + "\n"
        with whole(path) as part:
            part.write_text(text, encoding="utf-8")

    def to_json(self, value: T) -> dict[str, Any]:
        """The file's content, as plain data.

        Raises:
            ValueError: It is one that `load` would refuse.
        """
        content = self.plain(value)
        self.from_json(content)
        return content

    def plain(self, value: T) -> dict[str, Any]:
        """As `to_json`, whatever it is."""
        fields = dataclasses.asdict(value)  # type: ignore[call-overload]
        # Measurements may be numpy's numbers.
        text = json.dumps(fields, default=operator.methodcaller("item"))
        return {**self._header, **json.loads(text)}

    def from_json(self, content: Any, file: str | None = None) -> T:
        """What `to_json` made this of.

        Args:
            content: Plain data.
            file: Where it is from, for messages.

        Raises:
            ValueError: As for `load`.
        """
        kind, version = self._header.values()
        file = file or f"the {kind}"
        fields = dict(content) if isinstance(content, dict) else {}
        found = [fields.pop(name, None) for name in self._header]
        if found[0] != kind:
            raise ValueError(
                f"Expected a {kind}: a file of {file}. Received: one whose "
                f"kind is {shown(found[0])}."
            )
        if isinstance(found[1], bool) or found[1] != version:
            raise ValueError(
                f"Expected format {version} of {file}. Received: format "
                f"{shown(found[1])}, of another version of this package. "
                f"{self._again}."
            )
        return checked(self._content, fields, file)


def kind_of(path: str | os.PathLike[str]) -> Any:
    """What a JSON file says that it is; None if it says nothing.

    Raises:
        ValueError, OSError: As for `read_json`.
    """
    content = read_json(path)
    return content.get("kind") if isinstance(content, dict) else None


def read_json(path: str | os.PathLike[str]) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: It is no JSON, says something twice, or is too deep.
        OSError: It cannot be read.
    """
    text = pathlib.Path(path).read_bytes()
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected JSON in {os.fspath(path)}. Received: {error}."
        ) from error
    check_depth(found, os.fspath(path))
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the field {name!r} a second time in an object")
        found[name] = value
    return found
