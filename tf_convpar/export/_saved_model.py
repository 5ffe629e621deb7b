"""Writes a model as a SavedModel."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import shutil
import tempfile
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import layers as layers  # wraps `keras.Model.export`
from tf_convpar.export._exchange import PART
from tf_convpar.export._exchange import exchange
from tf_convpar.export._exchange import is_replaceable


def export(
    model: keras.Model, path: str | os.PathLike[str], **kwargs: Any
) -> None:
    """Writes a SavedModel that needs nothing but TensorFlow.

    ```python
    convpar.export(model, "served/digits")
    # elsewhere, with TensorFlow alone:
    served = tf.saved_model.load("served/digits")
    scores = served.serve(images)
    ```

    The file holds the merged kernels and plain convolutions: neither this
    package, nor the custom op, nor the cluster is needed to serve it.

    Args:
        model: Any built Keras model, with parallel layers or without.
        path: A folder, or a link to one. An export already there is replaced
            once the new one is complete; the folder itself stays, so it may
            be where a disk is mounted, or the current one. If the export
            fails, the old one stays as it was.
        **kwargs: Arguments of `keras.Model.export`, such as
            `input_signature=`.

    Raises:
        ValueError: `model` is not a Keras model or not built, or `path` holds
            something else than an earlier export, or is not of this machine.
        OSError: The folder cannot be written, or has not enough room.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a keras.Model. Received: {model!r} "
            f"(of type {type(model).__name__})."
        )
    if "://" in str(path):
        raise ValueError(
            "Expected `path` to be a folder of this machine. Received: "
            f"path={str(path)!r}. `model.export(path)` of Keras writes there "
            "directly, and does not replace an earlier export whole."
        )
    # What a link leads to is replaced, and the link stays.
    target = pathlib.Path(os.path.realpath(path))
    if os.path.lexists(target) and not is_replaceable(target):
        raise ValueError(
            "Expected `path` to be new, an empty folder or an earlier "
            f"SavedModel. Received: path={str(path)!r}, which holds "
            "something else."
        )
    # On the same disk as the target, so that nothing is copied.
    there = target.is_dir()
    beside = target if there else target.parent
    beside.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(dir=beside, prefix=PART))
    fresh, before = folder / "export", folder / "before"
    try:
        _write(model, fresh, kwargs)
        if there:
            before.mkdir()
            exchange(fresh, target, before)
        else:
            fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        # They stay if they hold what could not be put back.
        for one in (before, folder):
            with contextlib.suppress(OSError):
                one.rmdir()
        raise
    # The new export is complete, even if the old one cannot be removed.
    shutil.rmtree(folder, ignore_errors=True)


def _write(
    model: keras.Model, fresh: pathlib.Path, kwargs: dict[str, Any]
) -> None:
    kwargs = {"verbose": False, **kwargs}
    try:
        model.export(str(fresh), format="tf_saved_model", **kwargs)
    except tf.errors.ResourceExhaustedError as error:
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        free = shutil.disk_usage(fresh.parent).free
        raise OSError(
            errno.ENOSPC,
            f"Expected room for a whole export. Received a "
            f"disk with {free / 1e6:.1f} MB left",
            str(fresh.parent.parent),
        ) from None
