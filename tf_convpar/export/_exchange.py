"""Replaces an earlier export by a new one, in a folder that stays.

The folder may be one that cannot be renamed: a disk is mounted there, it is the
current one of a program, or only what is in it is the user's.
"""

from __future__ import annotations

import os
import pathlib

# Start of the names of folders with an export that is not complete yet.
PART = ".convpar-export-"
# The file by which a folder is an export.
_MODEL = "saved_model.pb"
# Names that an earlier export may have and a new one has not. Anything else in
# the folder is the user's.
_OLD = ("assets", "keras_metadata.pb", "fingerprint.pb", "variables")
# Folder at the root of some file systems.
_OF_DISKS = "lost+found"


def is_replaceable(path: pathlib.Path) -> bool:
    """Whether a path is an empty folder, or one with an earlier export."""
    if not path.is_dir():
        return False
    return (path / _MODEL).exists() or all(
        name == _OF_DISKS or name.startswith(PART) for name in os.listdir(path)
    )


def exchange(
    fresh: pathlib.Path, target: pathlib.Path, before: pathlib.Path
) -> None:
    """Moves an earlier export out of a folder, and a new one into it.

    The file by which it is an export goes first and comes last: who reads the
    folder meanwhile finds no export, rather than half of either.

    Args:
        fresh: Folder with the new export.
        target: Folder to put it in.
        before: Empty folder for what was there. All are on the same disk.

    Raises:
        OSError: Something cannot be moved; all is where it was, or the message
            says where else.
    """
    new = sorted(os.listdir(fresh), key=_MODEL.__eq__)
    old = dict.fromkeys((_MODEL, *_OLD, *new))
    moves = [
        *((target / name, before / name) for name in old),
        *((fresh / name, target / name) for name in new),
    ]
    begun: list[tuple[pathlib.Path, pathlib.Path]] = []
    try:
        for source, to in moves:
            if os.path.lexists(source):
                # Before, as an interrupt may come between the two.
                begun.append((source, to))
                source.rename(to)
    except BaseException as error:
        try:
            for source, to in reversed(begun):
                if not os.path.lexists(source):
                    to.rename(source)
        except OSError as another:
            raise OSError(
                another.errno,
                f"{another.strerror}; what is missing of the earlier export is "
                f"in {before}",
                str(target),
            ) from error
        raise
