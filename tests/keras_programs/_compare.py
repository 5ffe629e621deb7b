"""How far the numbers of two runs are apart."""

import math

import keras
import numpy as np


def arrays(numbers):
    """Arrays and floats in any structure, as a list of float64 arrays."""
    return [
        np.asarray(leaf, "float64").ravel()
        for leaf in keras.tree.flatten(numbers)
    ]


def difference(ours, theirs, least=0.0):
    """Largest difference, relative to the largest number of each array.

    An array of numbers below `least` is compared as if that were its largest.
    Infinite where something is missing or no number: a comparison with NaN
    must not pass.
    """
    if [a.shape for a in ours] != [b.shape for b in theirs]:
        return math.inf
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return math.inf
        if np.array_equal(a, b):
            continue
        scale = max(np.abs(a).max(), np.abs(b).max(), least)
        worst = max(worst, float(np.abs(a - b).max() / scale))
    return worst
