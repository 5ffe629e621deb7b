"""Writes snapshots to a folder while training goes on."""

from __future__ import annotations

import concurrent.futures
import pathlib
import time
import warnings
from collections.abc import Sequence

import numpy as np

from tf_convpar.callbacks import snapshot_file

# Seconds after which slow writing is warned of, and for which the end of a
# training waits for it.
_LONG_S = 60.0


class Writer:
    """Writes one snapshot at a time; those that come meanwhile are left out.

    ```python
    writer = Writer(folder)
    writer.write(names, arrays, (epoch, steps))  # holds nothing up
    writer.end()
    ```

    A disk that is slow or hangs holds up neither training nor copies, and costs
    the memory of one snapshot. If a snapshot cannot be written there is a
    warning: workers may still be lost, only the chief may not.

    Args:
        folder: Folder to write to.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._writing: concurrent.futures.Future[None] | None = None
        self._begun = 0.0
        self._warned = False

    def write(
        self,
        names: Sequence[str],
        arrays: Sequence[np.ndarray],
        place: tuple[int, int],
    ) -> None:
        """Begins to write a snapshot, unless the last is still being written.

        Args:
            names: Names of the variables.
            arrays: Their values.
            place: Epoch, and steps of it that have been made.
        """
        now = time.monotonic()
        if self._writing is None or self._writing.done():
            self._begun, self._warned = now, False
            self._writing = self._thread.submit(
                self._write, names, arrays, place
            )
        elif now - self._begun > _LONG_S and not self._warned:
            self._warned = True
            self._warn(
                f"the one before has been written for {now - self._begun:.0f} "
                "s and is not done"
            )

    def end(self, remove: bool = False) -> None:
        """Waits for what is being written, for a minute at most.

        Args:
            remove: Whether to remove what was written.
        """
        left = [self._writing] if self._writing else []
        if remove:
            left.append(self._thread.submit(snapshot_file.remove, self.folder))
        self._thread.shutdown(wait=False)
        if concurrent.futures.wait(left, _LONG_S).not_done:
            self._warn(
                f"it has not been written in {_LONG_S:.0f} s"
                + ", and is removed as soon as it is" * remove
            )

    def _write(
        self,
        names: Sequence[str],
        arrays: Sequence[np.ndarray],
        place: tuple[int, int],
    ) -> None:
        try:
            snapshot_file.save(self.folder, names, arrays, place)
        except Exception as error:  # noqa: BLE001 (nobody else would see it)
            kind = "" if isinstance(error, OSError) else type(error).__name__
            text = getattr(error, "strerror", None) or str(error)
            self._warn(": ".join(filter(None, (kind, text))))

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"Could not write a snapshot to {self.folder}: {why}.",
            RuntimeWarning,
            stacklevel=1,
        )
