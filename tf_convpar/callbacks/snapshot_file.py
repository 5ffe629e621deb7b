"""Snapshots as files, which hold numbers and names: nothing is executed."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from tf_convpar.files import atomic
from tf_convpar.files import remove_parts

# NumPy's archive; the zip format has a sum of each array.
_NAME = "elastic.npz"
_PLACE, _NAMES = "place", "names"


class Written(NamedTuple):
    """What a file has: names of variables, their values, epoch and steps."""

    names: list[str]
    arrays: list[np.ndarray]
    place: tuple[int, int]


def save(
    folder: pathlib.Path,
    names: Sequence[str],
    arrays: Sequence[np.ndarray],
    place: tuple[int, int],
) -> None:
    """Writes a snapshot, whole or not at all.

    Args:
        folder: Folder to write to; made if it is missing.
        names: Names of the variables.
        arrays: Their values.
        place: Epoch, and steps of it that have been made.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        f"{i:06}": array for i, array in enumerate(arrays)
    }
    content |= {_PLACE: np.array(place), _NAMES: np.array(names, str)}
    with atomic(folder / _NAME) as part, part.open("wb") as file:
        np.savez(file, **content)


def load(folder: pathlib.Path) -> Written | None:
    """Reads a snapshot; None if there is none.

    Raises:
        ValueError: The file is no snapshot, or damaged.
    """
    path = folder / _NAME
    # A chief that was killed while it wrote has left a large part.
    with contextlib.suppress(OSError):
        remove_parts(path)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = [str(name) for name in archive[_NAMES]]
            arrays = [archive[f"{i:06}"] for i in range(len(names))]
            epoch, step = archive[_PLACE].tolist()
        if not all(isinstance(n, int) and n >= 0 for n in (epoch, step)):
            raise ValueError(f"epoch {epoch}, step {step}")
    except Exception as error:
        # Damage shows as whatever zipfile and NumPy stumble over.
        raise ValueError(
            f"Expected a snapshot that `Elastic` has written. Received {path}: "
            f"{error}. Delete it to begin anew."
        ) from None
    return Written(names, arrays, (epoch, step))


def remove(folder: pathlib.Path) -> None:
    """Removes the snapshot of a training that has come to its end."""
    # There is none if none could be written.
    with contextlib.suppress(OSError):
        (folder / _NAME).unlink()
