"""Photographs of scikit-learn's, cut into small images of ten classes."""

import numpy as np
from PIL import Image
from PIL import ImageDraw
from sklearn.datasets import load_digits
from sklearn.datasets import load_sample_images


def crops(number, size, seed, noise=0.0):
    """Images of a photograph's strip, of which there are ten.

    Each is mirrored or not, brighter or darker, of more or less contrast.

    Args:
        number: How many.
        size: Pixels of an edge.
        seed: What they are drawn from.
        noise: Standard deviation of what is added; white is 1.

    Returns:
        Images `(number, size, size, 3)` from 0 to 1, and the number of the
        strip, 0 to 9, of each.
    """
    rng = np.random.default_rng(seed)
    photographs = [
        x.astype("float32") / 255 for x in load_sample_images().images
    ]
    labels = rng.integers(10, size=number)
    images = np.empty((number, size, size, 3), "float32")
    for image, label in zip(images, labels, strict=True):
        photograph = photographs[label // 5]
        height, width, _ = photograph.shape
        first = width // 5 * (label % 5)
        top = rng.integers(height - size + 1)
        left = rng.integers(first, first + width // 5 - size + 1)
        crop = photograph[top : top + size, left : left + size]
        if rng.integers(2):
            crop = crop[:, ::-1]
        crop = (crop - 0.5) * rng.uniform(0.6, 1.4) + 0.5
        crop = crop + rng.uniform(-0.2, 0.2)
        image[:] = crop + rng.normal(scale=noise, size=crop.shape)
    # As a file would have them: in 8 bits.
    return np.round(np.clip(images, 0, 1) * 255) / np.float32(255), labels


def digits():
    """1000 images of 8x8 to learn from, and the other 797."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    return (images[:1000], labels[:1000]), (images[1000:], labels[1000:])


def shapes(train=15000, test=3000):
    """Ten shapes on photographs, 32x32, to learn from, and others."""
    return drawn(train, 0), drawn(test, 1)


def drawn(number, seed):
    """Shapes of any colour and place, turned a little, on crops of photographs.

    Args:
        number: How many.
        seed: What they are drawn from.

    Returns:
        Images `(number, 32, 32, 3)` from 0 to 1, and the number of the shape
        of each.
    """
    rng = np.random.default_rng(seed)
    images, _ = crops(number, 32, seed, noise=0.02)
    labels = rng.integers(10, size=number)
    for image, label in zip(images, labels, strict=True):
        edge = 4 * 32
        mask = Image.new("L", (edge, edge))
        size = rng.uniform(0.3, 0.42) * edge
        centre = rng.uniform(size, edge - size, size=2)
        points, hole = _outline(label, rng.uniform(-0.3, 0.3))
        pen = ImageDraw.Draw(mask)
        pen.polygon([*(centre + size * points).ravel()], fill=255)
        if hole:
            pen.polygon([*(centre + hole * size * points).ravel()], fill=0)
        cover = np.asarray(mask.resize((32, 32), Image.BOX)) / np.float32(255)
        colour = np.where(image.mean((0, 1)) > 0.5, 0.0, 1.0)
        colour = colour + rng.uniform(-0.3, 0.3, size=3)
        image += cover[..., None] * (np.clip(colour, 0, 1) - image)
    return np.round(images * 255) / np.float32(255), labels


def _outline(label, angle):
    """Points on a shape's outline, and the size of its hole, or 0."""
    corners = (3, 4, 40, 8, 10)[label % 5]
    around = angle + 2 * np.pi * np.arange(corners) / corners
    # A triangle, a square, a disc; stars of four and five points.
    distance = np.where(np.arange(corners) % 2 * (corners in (8, 10)), 0.4, 1)
    points = np.stack([np.cos(around), np.sin(around)], 1) * distance[:, None]
    return points, 0.55 if label >= 5 else 0
