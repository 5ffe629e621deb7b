"""Keeps measurements in files, and lets one process measure at a time.

The modules that measure decide what a file holds: they pass the functions that
read and write it.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import pathlib
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TypeVar

import filelock

from tf_convpar.files import CACHE_FOLDER
from tf_convpar.files import cache_folder

Kept = TypeVar("Kept")

# Whether this process is the one that measures: what it does meanwhile, in
# threads too, may ask for the same.
measures: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "measures", default=False
)

# Version of what is measured, and how: files of another version are not used.
_METHOD = 4


def path(name: str, key: Any, folder: str = "calibrations") -> pathlib.Path:
    """Path in the `cache_folder` of measurements, or of what follows from them.

    Args:
        name: Start of the file's name.
        key: Everything that the measurements depend on.
        folder: Folder for files of their kind.
    """
    text = repr((_METHOD, key))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return cache_folder() / folder / f"{name}-{digest}.json"


def find(
    file: pathlib.Path, load: Callable[[pathlib.Path], Kept]
) -> Kept | None:
    """Reads measurements; None if the file is missing or of no use.

    ```python
    file = path("layer", key)
    calibration = find(file, _calibration.load)
    ```

    Args:
        file: A path from `path`.
        load: Function that reads the file. An OSError or a ValueError says
            that the file is of no use.
    """
    with contextlib.suppress(OSError, ValueError):
        return load(file)
    return None


def keep(
    measured: Kept,
    file: pathlib.Path,
    save: Callable[[Kept, pathlib.Path], None],
) -> None:
    """Writes measurements to a file, or warns that it cannot be written.

    ```python
    keep(calibration, file, Calibration.save)
    ```

    Args:
        measured: Measurements to write.
        file: A path from `path`; its folder is made.
        save: Function that writes the file, whole or not at all.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save(measured, file)
    except OSError as error:
        warnings.warn(
            f"Could not write {file}: {error.strerror or error}. The next "
            f"program will measure again. Set {CACHE_FOLDER} to a folder that "
            "can be written.",
            RuntimeWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def alone(report: Callable[[str], None]) -> Iterator[None]:
    """Lets one process of this user measure at a time.

    In a folder that all users share, any of them could hold the lock for ever.
    """
    if measures.get():
        yield
        return
    lock = filelock.FileLock(cache_folder() / "measuring.lock", mode=0o600)
    with contextlib.ExitStack() as held:
        try:
            pathlib.Path(lock.lock_file).parent.mkdir(
                parents=True, exist_ok=True
            )
            held.enter_context(lock.acquire(blocking=False))
        except filelock.Timeout:
            report("waiting for another process that measures")
            held.enter_context(lock.acquire())
        except (OSError, NotImplementedError):
            pass  # A folder that cannot be written.
        token = measures.set(True)
        held.callback(measures.reset, token)
        yield
