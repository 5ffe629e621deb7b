"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A file beside `path` to write, which takes its place when all is well.

    ```python
    with whole("plan.json") as part:
        part.write_text("{}")
    ```
    """
    target = pathlib.Path(path)
    # Nobody else's, be it another thread's.
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file whole or not at all."""
    with whole(path) as part:
        part.write_bytes(content)
