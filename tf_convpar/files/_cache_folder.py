"""Where measurements are kept."""

from __future__ import annotations

import os
import pathlib
import tempfile

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
        return pathlib.Path(tempfile.gettempdir(), f"tf_convpar-{os.getuid()}")
