"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import secrets
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a file to write, which replaces `path` if the context succeeds.

    ```python
    with atomic("plan.json") as part:
        part.write_text("{}")
    ```

    A link stays: what it leads to is replaced. What is no file, such as a pipe
    or `/dev/null`, stays as well, and all is written into it at once.
    """
    target = pathlib.Path(os.path.realpath(path))
    in_place = target.exists() and not (target.is_file() or target.is_dir())
    folder = pathlib.Path(tempfile.gettempdir()) if in_place else target.parent
    # A name that no other process or thread uses.
    part = folder / _part(target.name, secrets.token_hex(4))
    try:
        yield part
        if in_place:
            target.write_bytes(part.read_bytes())
        else:
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Removes parts of a file whose writers were killed.

    Only for a file that nobody else writes.
    """
    target = pathlib.Path(os.path.realpath(path))
    for part in target.parent.glob(_part(glob.escape(target.name), "*")):
        part.unlink(missing_ok=True)


def _part(name: str, tag: str) -> str:
    return f".{name}.{tag}.part"


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file whole or not at all."""
    with atomic(path) as part:
        part.write_bytes(content)
