"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file whole or not at all."""
    target = pathlib.Path(path)
    handle, name = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}-"
    )
    try:
        with open(handle, "wb") as temporary:
            temporary.write(content)
        # mkstemp makes it for its owner alone.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A file beside `path` to write, which takes its place when all is well."""
    target = pathlib.Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
