"""Writes a model as a SavedModel."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from typing import Any

import keras

from tf_convpar import layers as layers  # wraps `keras.Model.export`


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
        path: A folder. An export already there is replaced once the new one
            is complete. If the export fails, the old one stays as it was.
        **kwargs: Arguments of `keras.Model.export`, such as
            `input_signature=`.

    Raises:
        ValueError: `model` is not a Keras model or not built, or `path` holds
            something else than an earlier export.
    """
    target = pathlib.Path(path)
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a keras.Model. Received: {model!r} "
            f"(of type {type(model).__name__})."
        )
    if target.exists() and not _replaceable(target):
        raise ValueError(
            "Expected `path` to be new, an empty folder or an earlier "
            f"SavedModel. Received: path={str(path)!r}, which holds "
            "something else."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    kwargs.setdefault("verbose", False)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}-"
    ) as folder:
        fresh = pathlib.Path(folder) / "export"
        model.export(str(fresh), format="tf_saved_model", **kwargs)
        if target.exists():
            shutil.move(str(target), str(pathlib.Path(folder) / "before"))
        fresh.replace(target)


def _replaceable(path: pathlib.Path) -> bool:
    return path.is_dir() and (
        (path / "saved_model.pb").exists() or not any(path.iterdir())
    )
