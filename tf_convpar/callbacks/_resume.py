"""Lets `fit` go on from the snapshot that an earlier program has written."""

from __future__ import annotations

import pathlib

import keras

from tf_convpar._compat.keras import begin_at
from tf_convpar._compat.keras import print_msg
from tf_convpar.callbacks._snapshot import restore


def resume(model: keras.Model, folder: pathlib.Path) -> tuple[int, int] | None:
    """Restores a snapshot, and lets `fit`, which has begun, start at its epoch.

    Returns:
        Epoch, and steps of it that had been made; None without a snapshot.

    Raises:
        ValueError: The file is no snapshot, or one of another model.
    """
    place = restore(model, folder)
    if place is not None:
        epoch, done = place
        begin_at(model, epoch)
        # Metrics have no result before a step, and the epoch that training
        # goes on in may have none left.
        model.__dict__["get_metrics_result"] = dict
        print_msg(
            f"{model.name}: going on after step {done} of epoch {epoch + 1}."
        )
    return place
