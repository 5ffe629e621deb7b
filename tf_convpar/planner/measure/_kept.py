"""Measurements that are kept, and measuring by one process at a time.

What a file holds is the matter of those who measure: they say how it is read
and written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

FOLDER = "TF_CONVPAR_CACHE"

Kept = TypeVar("Kept")


def path(name: str, key: Any) -> pathlib.Path:
    """Where measurements are kept, by all that they depend on.

    In `$TF_CONVPAR_CACHE`, else in the user's cache folder.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    folder = os.environ.get(FOLDER)
    if folder:
        root = pathlib.Path(folder)
    else:
        caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = pathlib.Path(caches) / "tf_convpar"
    return root.expanduser() / "calibrations" / f"{name}-{digest}.json"


def find(
    file: pathlib.Path, load: Callable[[pathlib.Path], Kept]
) -> Kept | None:
    """What is in the file; None if it is not there or of no use.

    ```python
    file = path("layer", key)
    calibration = find(file, _calibration_file.load)
    ```

    Args:
        file: A path from `path`.
        load: Reads it; an OSError or a ValueError says that it is of no use.
    """
    with contextlib.suppress(OSError, ValueError):
        return load(file)
    return None


def keep(
    measured: Kept,
    file: pathlib.Path,
    save: Callable[[Kept, pathlib.Path], None],
) -> None:
    """Writes the file; a warning where that cannot be.

    ```python
    keep(calibration, file, _calibration_file.save)
    ```

    Args:
        measured: What is written.
        file: A path from `path`; its folder is made.
        save: Writes it, whole or not at all.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save(measured, file)
    except OSError as error:
        warnings.warn(
            f"Could not write {file}: {error.strerror or error}. The next "
            f"program will measure again. Set {FOLDER} to a folder that can "
            "be written.",
            RuntimeWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def alone(report: Callable[[str], None]) -> Iterator[None]:
    """One process of this machine at a time, whoever started it."""
    lock_file = os.path.join(tempfile.gettempdir(), "tf_convpar-measuring.lock")
    try:
        lock = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield  # Another user's, and closed to us.
        return
    try:
        with contextlib.suppress(OSError):
            os.fchmod(lock, 0o666)  # Whatever this user's mask.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report("waiting for another process that measures")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
