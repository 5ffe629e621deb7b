"""Small data: handwritten digits, and what is made of random numbers.

The digits have a little noise: in a blank corner all patches are equal, and
which of equal numbers is the largest would depend on the last bit.
"""

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits


def digits(count=128, size=16):
    """Images of shape (count, size, size, 1) from 0 to 1, and labels."""
    data = load_digits()
    images = data.images[:count] / 16
    if size != 8:
        images = zoom(images, (1, size / 8, size / 8), order=1)
    noise = np.random.default_rng(0).normal(0, 0.02, images.shape)
    return np.clip(images + np.abs(noise), 0, 1)[..., None], data.target[:count]


def coloured_digits(count=128, size=32):
    """The same in colour, as networks for photographs want them."""
    images, labels = digits(count, size)
    tints = np.random.default_rng(1).uniform(0.5, 1, (count, 1, 1, 3))
    return images * tints, labels


def volumes(count=64, size=8):
    """Scans of shape (count, size, size, size, 1), half of them with a lump."""
    rng = np.random.default_rng(2)
    scans = rng.normal(0, 1, (count, size, size, size, 1))
    labels = np.arange(count) % 2
    for scan, label in zip(scans, labels, strict=True):
        x, y, z = rng.integers(0, size - 3, 3)
        scan[x : x + 3, y : y + 3, z : z + 3] += 2 * label
    return scans, labels


def blobs(count=48, size=16):
    """Images of shape (count, size, size, 3), and masks of what is in them."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:size, :size]
    masks = np.zeros((count, size, size, 1), "int32")
    for kind in (1, 2):
        centres = rng.uniform(3, size - 3, (count, 2, 1, 1))
        radii = rng.uniform(2, 4, (count, 1, 1))
        far = (x - centres[:, 0]) ** 2 + (y - centres[:, 1]) ** 2
        masks[far < radii**2] = kind
    colours = np.array([[0.2, 0.2, 0.2], [0.8, 0.3, 0.2], [0.2, 0.4, 0.9]])
    images = colours[masks[..., 0]] + rng.normal(0, 0.1, (count, size, size, 3))
    return images, masks


def waves(count=96, steps=32):
    """Series of shape (count, steps, 1) of three kinds, and the kinds."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, count)
    t = np.arange(steps)[None] / steps + rng.uniform(0, 1, (count, 1))
    series = np.sin(2 * np.pi * t * (2 + 2 * labels[:, None]))
    return (series + rng.normal(0, 0.3, series.shape))[..., None], labels


def sentences(count=96, longest=12, words=20):
    """Token numbers padded with 0, and whether they contain word 3."""
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, words, (count, longest))
    lengths = rng.integers(4, longest + 1, count)
    tokens[np.arange(longest)[None] >= lengths[:, None]] = 0
    return tokens, (tokens == 3).any(axis=1).astype("int32")
