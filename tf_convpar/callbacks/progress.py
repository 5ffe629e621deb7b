"""How far `fit` is, also where it goes on from the snapshot of a program."""

from __future__ import annotations

import pathlib
import warnings

import keras

from tf_convpar._compat.keras import begin_at
from tf_convpar._compat.keras import print_msg
from tf_convpar.callbacks.snapshot import lacks_variables
from tf_convpar.callbacks.snapshot import restore
from tf_convpar.callbacks.snapshot_file import Written
from tf_convpar.callbacks.snapshot_file import load


class Progress:
    """The epoch and step of `fit`, and what of it was done before.

    ```python
    progress = Progress()
    progress.resume(model, folder)  # when `fit` begins
    progress.begin_epoch(epoch)
    if progress.waits:
        step(batch)  # makes variables, and is undone:
        progress.restore(model)
    if not progress.passes_over(model, 1):
        step(batch)
        progress.step(1)
    progress.place
    ```

    Attributes:
        stepped: Whether a step was made that counts.
    """

    def __init__(self) -> None:
        self.stepped = False
        # Steps of the epoch that were made or passed over, and that will be.
        self._epoch = self._done = self._over = 0
        self._waiting: tuple[Written, pathlib.Path] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Epoch, and steps of it that the model has learned from."""
        return self._epoch, self._done + self._over

    @property
    def waits(self) -> bool:
        """Whether a snapshot has variables that the first step makes."""
        return self._waiting is not None

    def resume(self, model: keras.Model, folder: pathlib.Path) -> None:
        """Lets `fit`, which has begun, go on from a snapshot, if there is one.

        Raises:
            ValueError: The file is no snapshot, or one of another model.
        """
        written = load(folder)
        if written is None:
            return
        if lacks_variables(model, written):
            self._waiting = written, folder
        else:
            restore(model, written, folder)
        self._epoch, self._over = written.place
        begin_at(model, self._epoch)
        print_msg(
            f"{model.name}: going on after step {self._over} of epoch "
            f"{self._epoch + 1}."
        )

    def begin_epoch(self, epoch: int) -> None:
        """Notes the epoch."""
        self._epoch, self._done = epoch, 0

    def restore(self, model: keras.Model) -> None:
        """Restores the snapshot that waits, as if there had been no step.

        Raises:
            ValueError: It is one of another model.
        """
        if self._waiting is not None:
            restore(model, *self._waiting)
            model.reset_metrics()
            self._waiting = None

    def passes_over(self, model: keras.Model, batches: int) -> bool:
        """Whether batches were learned from before; they then are counted."""
        if self._over == 0:
            return False
        self._over = max(0, self._over - batches)
        self._done += batches
        # Metrics have no result before a step, and the epoch that training goes
        # on in may have none left.
        model.__dict__["get_metrics_result"] = dict
        return True

    def step(self, batches: int) -> None:
        """Notes that the model has learned from batches."""
        self.stepped = True
        self._done += batches

    def end(self, model: keras.Model) -> None:
        """Warns of a snapshot that waits in vain."""
        if self._waiting is not None:
            (_, _, (epoch, _)), folder = self._waiting
            warnings.warn(
                f"Expected a step in which {model.name} makes the variables "
                f"of the snapshot in {folder}. Received none: give `fit` more "
                f"than {epoch} epochs. The snapshot stays.",
                RuntimeWarning,
                stacklevel=1,
            )
