"""Made images of ten classes: textures, moved, turned, coloured and noisy.

    python benchmarks/replicas/images.py picture.png

They need neither a network nor a download. What tells classes apart is where
light and dark meet, not a colour or a place, so a linear model has little to
go by. The program draws some, and says how often a linear model is right.
"""

import sys

import numpy as np
from scipy import ndimage

CLASSES, PIXELS = 10, 16
# How far an image is moved, turned (radians) and scaled at most, and the
# standard deviation of the noise on each value, in those of the texture.
SHIFT, TURN, SCALE, NOISE = 5.0, 0.4, 0.2, 0.6


def textures(rng):
    """A texture for each class, which goes on at its other end."""
    found = rng.normal(size=(CLASSES, 2 * PIXELS, 2 * PIXELS))
    found = ndimage.gaussian_filter(found, (0, 1.8, 1.8), mode="wrap")
    return found / found.std(axis=(1, 2), keepdims=True)


def seen(texture, rng):
    """A texture as one image shows it."""
    turn = rng.uniform(-TURN, TURN)
    scale = np.exp(rng.uniform(-SCALE, SCALE))
    matrix = scale * np.array(
        [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
    )
    middle = np.full(2, (PIXELS - 1) / 2)
    offset = PIXELS + rng.uniform(-SHIFT, SHIFT, 2) - matrix @ middle
    shape = (PIXELS, PIXELS)
    grey = ndimage.affine_transform(
        texture, matrix, offset, shape, order=1, mode="grid-wrap"
    )
    colour = rng.uniform(0.2, 1.0, 3)
    behind = rng.normal(0.0, 0.5, 3)
    noise = rng.normal(0.0, NOISE, (*shape, 3))
    return grey[..., None] * colour + behind + noise


def load(train=4000, test=1000, seed=0):
    """Returns (train images, train labels), (test images, test labels)."""
    rng = np.random.default_rng(seed)
    known = textures(rng)
    labels = rng.integers(0, CLASSES, train + test)
    images = np.stack([seen(known[label], rng) for label in labels])
    images = images.astype("float32")
    return (images[:train], labels[:train]), (images[train:], labels[train:])


def main():
    from matplotlib.figure import Figure
    from sklearn.linear_model import LogisticRegression

    (x, y), (test_x, test_y) = load()
    linear = LogisticRegression(C=0.01, max_iter=200)
    linear.fit(x.reshape(len(x), -1), y)
    right = linear.score(test_x.reshape(len(test_x), -1), test_y)
    print(f"a linear model is right of {right:.1%} of the test images")
    figure = Figure(figsize=(8, 8), layout="constrained")
    for label, row in enumerate(figure.subplots(CLASSES, 10)):
        for axes, image in zip(row, x[y == label], strict=False):
            axes.imshow(((image + 2.5) / 5).clip(0, 1))
            axes.set_axis_off()
    figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
