"""Real images: training batches in a fixed order, and held-out images."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

_SIZE = 32
# The number of held-out images, enough to see that two models score alike. All
# of CIFAR-10's would take longer than the training.
_HELD_OUT = 360


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of shape `(count, 32, 32, 3)`, and their labels.

    Pixels have mean 0 and variance 1 over the images to train on.

    Attributes:
        x: Images to train on.
        y: Labels of `x`, whole numbers from 0 on.
        held_out_x: Images that are never trained on.
        held_out_y: Labels of `held_out_x`.
    """

    x: np.ndarray
    y: np.ndarray
    held_out_x: np.ndarray
    held_out_y: np.ndarray


def load(name: str) -> Images:
    """Loads a data set.

    ```python
    images = load("digits")
    ```

    Args:
        name: `"digits"` (part of scikit-learn) or `"cifar10"` (downloaded).

    Raises:
        RuntimeError: The data set cannot be had here; the message says what can
            be done.
    """
    return {"digits": _digits, "cifar10": _cifar10}[name]()


def _digits() -> Images:
    """1797 scanned digits of 8x8 grey levels, in the paper's 32x32x3."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise RuntimeError(
            "Expected scikit-learn, whose package holds the images. Install "
            "it with: pip install 'tf_convpar[demo]'"
        ) from None
    digits = load_digits()
    grey = tf.image.resize(digits.images[..., None] / 16, (_SIZE, _SIZE))
    x = np.repeat(np.asarray(grey, "float32"), 3, axis=-1)
    # The order of the digits may mean something, such as who wrote them.
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], digits.target[order]
    return _standardized(
        x[:-_HELD_OUT], y[:-_HELD_OUT], x[-_HELD_OUT:], y[-_HELD_OUT:]
    )


def _cifar10() -> Images:
    try:
        # Keras' progress bar is not part of our result.
        with contextlib.redirect_stdout(sys.stderr):
            (x, y), (held_out_x, held_out_y) = (
                keras.datasets.cifar10.load_data()
            )
    except Exception as error:  # Keras raises no narrower class.
        raise RuntimeError(
            f"CIFAR-10 is not here and could not be downloaded: {error}. "
            "`--dataset digits` needs no network."
        ) from error
    return _standardized(
        x.astype("float32") / 255,
        y[:, 0],
        held_out_x[:_HELD_OUT].astype("float32") / 255,
        held_out_y[:_HELD_OUT, 0],
    )


def _standardized(
    x: np.ndarray, y: np.ndarray, held_out_x: np.ndarray, held_out_y: np.ndarray
) -> Images:
    mean, spread = x.mean(), x.std()
    return Images(
        (x - mean) / spread, y, (held_out_x - mean) / spread, held_out_y
    )


def batches(
    images: Images, batch_size: int, steps: int, seed: int
) -> tf.data.Dataset:
    """Training batches, the same in the same order for the same seed.

    ```python
    model.fit(batches(images, batch_size=64, steps=100, seed=1))
    ```

    Args:
        images: The images to draw from.
        batch_size: Number of images in a batch.
        steps: Number of batches.
        seed: Seed of their order.
    """

    def draw() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(seed)
        count = len(images.x)
        epochs = math.ceil(steps * batch_size / count)
        order = np.concatenate([rng.permutation(count) for _ in range(epochs)])
        for first in range(0, steps * batch_size, batch_size):
            chosen = order[first : first + batch_size]
            yield images.x[chosen], images.y[chosen]

    signature = tuple(
        tf.TensorSpec((batch_size, *array.shape[1:]), array.dtype)
        for array in (images.x, images.y)
    )
    # With a known length: at the end of any other dataset Keras warns.
    return tf.data.Dataset.from_generator(
        draw, output_signature=signature
    ).apply(tf.data.experimental.assert_cardinality(steps))
