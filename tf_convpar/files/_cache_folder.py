"""The folder in which measurements are kept."""

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
        chosen = os.environ.get(CACHE_FOLDER)
        folder = chosen or platformdirs.user_cache_dir("tf_convpar", False)
        return pathlib.Path(folder).expanduser()
    except RuntimeError:  # A user without a home, as in containers.
        return temporary_folder()


def temporary_folder() -> pathlib.Path:
    """This user's folder within one that all users can write to.

    A folder that another user has made, or can write to, is not used.
    """
    own_folder = pathlib.Path(
        tempfile.gettempdir(), f"tf_convpar-{os.getuid()}"
    )
    with contextlib.suppress(OSError):
        own_folder.mkdir(mode=0o700, exist_ok=True)
    try:
        state = own_folder.lstat()
    except OSError:
        return own_folder  # One that nobody can write.
    if (
        stat.S_ISDIR(state.st_mode)
        and state.st_uid == os.getuid()
        and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        return own_folder
    return pathlib.Path(_instead_of(own_folder).name)


@functools.cache
def _instead_of(folder: pathlib.Path) -> tempfile.TemporaryDirectory[str]:
    temporary = tempfile.TemporaryDirectory(prefix=f"{folder.name}-")
    warnings.warn(
        f"Expected {folder} to be a folder that this user alone can write. "
        "Received another, which is not touched; what is measured is "
        f"forgotten with this program. Set {CACHE_FOLDER} to a folder of your "
        "own.",
        RuntimeWarning,
        stacklevel=4,
    )
    return temporary
