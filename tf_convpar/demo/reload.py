"""Serves an export in another process that has TensorFlow alone."""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import numpy as np

from tf_convpar.cluster.process import Process

_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf

served = tf.saved_model.load(sys.argv[1])
np.save(sys.argv[3], served.serve(np.load(sys.argv[2])))
if "tf_convpar" in sys.modules:
    sys.exit("It needed tf_convpar, not TensorFlow alone.")
"""


def predict_elsewhere(model: pathlib.Path, x: np.ndarray) -> np.ndarray:
    """Predictions of a SavedModel by a fresh process.

    ```python
    scores = predict_elsewhere(pathlib.Path("served/digits"), images)
    ```

    Raises:
        RuntimeError: The process failed; the message shows its output.
    """
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / "x.npy", x)
        files = [model.resolve(), folder / "x.npy", folder / "y.npy"]
        command = [sys.executable, "-c", _PROGRAM, *map(str, files)]
        # Away from the current folder, which Python would search for modules.
        with Process(command, env=env, cwd=name) as process:
            if process.wait():
                raise RuntimeError(
                    f"The exported model did not load:\n{process.output}"
                )
        return np.load(folder / "y.npy")
