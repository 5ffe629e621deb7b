"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a file to write, which replaces `path` if the context succeeds.

    ```python
    with whole("plan.json") as part:
        part.write_text("{}")
    ```
    """
    target = pathlib.Path(path)
    # A name that no other process or thread uses.
    part = target.with_name(_part(target.name, secrets.token_hex(4)))
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Removes parts of a file whose writers were killed.

    Only for a file that nobody else writes.
    """
    target = pathlib.Path(path)
    for part in target.parent.glob(_part(glob.escape(target.name), "*")):
        part.unlink(missing_ok=True)


def _part(name: str, tag: str) -> str:
    return f".{name}.{tag}.part"


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file whole or not at all."""
    with whole(path) as part:
        part.write_bytes(content)
