"""Where measurements are kept."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import stat
import tempfile
import warnings

import platformdirs

CACHE_FOLDER = "TF_CONVPAR_CACHE"


def cache_folder() -> pathlib.Path:
    """`$TF_CONVPAR_CACHE`, else this package's in the user's cache folder.

    It may not exist, and it may be one that nobody can write.
    """
    try:
        given = os.environ.get(CACHE_FOLDER)
        found = given or platformdirs.user_cache_dir("tf_convpar", False)
        return pathlib.Path(found).expanduser()
    except RuntimeError:  # A user without a home, as in containers.
        return _temporary(tempfile.gettempdir())


def _temporary(folder: str) -> pathlib.Path:
    """A folder within one in which everybody makes folders of any name.

    What others have made there, or could write, is not read and not written.
    """
    found = pathlib.Path(folder, f"tf_convpar-{os.getuid()}")
    with contextlib.suppress(OSError):
        found.mkdir(mode=0o700, exist_ok=True)
    try:
        state = found.lstat()
    except OSError:
        return found  # One that nobody can write.
    if (
        stat.S_ISDIR(state.st_mode)
        and state.st_uid == os.getuid()
        and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        return found
    return pathlib.Path(_instead_of(found).name)


@functools.cache
def _instead_of(folder: pathlib.Path) -> tempfile.TemporaryDirectory[str]:
    own = tempfile.TemporaryDirectory(prefix=f"{folder.name}-")
    warnings.warn(
        f"Expected {folder} to be a folder that this user alone can write. "
        "Received another, which is not touched; what is measured is "
        f"forgotten with this program. Set {CACHE_FOLDER} to a folder of your "
        "own.",
        RuntimeWarning,
        stacklevel=4,
    )
    return own
