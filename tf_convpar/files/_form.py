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

from tf_convpar.files._atomic import atomic
from tf_convpar.files._checked import check_depth
from tf_convpar.files._checked import checked
from tf_convpar.files._checked import shown

T = TypeVar("T")


class Form(Generic[T]):
    """A format of JSON files: a dataclass, with a kind and a version.

    ```python
    FORM = Form(Calibration, "calibration", 4, "Measure again")
    FORM.save(calibration, "cluster.json")
    FORM.load("cluster.json") == calibration  # True
    ```

    Args:
        content: The dataclass, of `Checked`.
        kind: The file's field `"kind"`.
        version: Its field `"format"`.
        again: What to do about a file of another version, for messages.
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
        with atomic(path) as part:
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
        """As `to_json`, even if `load` would refuse it."""
        fields = dataclasses.asdict(value)  # type: ignore[call-overload]
        # Measurements may be numpy's numbers.
        text = json.dumps(fields, default=operator.methodcaller("item"))
        return {**self._header, **json.loads(text)}

    def from_json(self, content: Any, file: str | None = None) -> T:
        """The value that `to_json` was given.

        Args:
            content: Plain data.
            file: File that the data is from, for messages.

        Raises:
            ValueError: As for `load`.
        """
        kind, version = self._header.values()
        file = file or f"the {kind}"
        fields = dict(content) if isinstance(content, dict) else {}
        header = [fields.pop(name, None) for name in self._header]
        if header[0] != kind:
            raise ValueError(
                f"Expected a {kind}: a file of {file}. Received: one whose "
                f"kind is {shown(header[0])}."
            )
        if isinstance(header[1], bool) or header[1] != version:
            raise ValueError(
                f"Expected format {version} of {file}. Received: format "
                f"{shown(header[1])}, of another version of this package. "
                f"{self._again}."
            )
        return checked(self._content, fields, file)


def kind_of(path: str | os.PathLike[str]) -> Any:
    """The field `kind` of a JSON file; None if it has none.

    Raises:
        ValueError, OSError: As for `read_json`.
    """
    content = read_json(path)
    return content.get("kind") if isinstance(content, dict) else None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: It is no JSON, has a field twice, or is nested too deep.
        OSError: It cannot be read.
    """
    text = pathlib.Path(path).read_bytes()
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"Expected JSON in {os.fspath(path)}. Received: {error}."
        ) from error
    check_depth(content, os.fspath(path))
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the field {name!r} a second time in an object")
        fields[name] = value
    return fields
