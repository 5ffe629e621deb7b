"""Handwritten digits, which come with scikit-learn, as 32x32 images."""

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load():
    """Returns (train images, train labels), (test images, test labels)."""
    digits = load_digits()
    images = digits.images[..., None].astype("float32") / 16
    images = np.asarray(tf.image.resize(images, (32, 32)))
    return (
        (images[:1500], digits.target[:1500]),
        (images[1500:], digits.target[1500:]),
    )
