"""Calibrations that are kept, and measuring by one process at a time."""

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

from tf_convpar.planner import _calibration_file
from tf_convpar.planner._calibration import Calibration

FOLDER = "TF_CONVPAR_CACHE"


def path(name: str, key: Any) -> pathlib.Path:
    """Where a calibration is kept, by all that it depends on.

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


def find(file: pathlib.Path) -> Calibration | None:
    """What is in the file; None if it is not there or of no use."""
    with contextlib.suppress(OSError, ValueError):
        return _calibration_file.load(file)
    return None


def keep(calibration: Calibration, file: pathlib.Path) -> None:
    """Writes the file; a warning where that cannot be."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _calibration_file.save(calibration, file)
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
