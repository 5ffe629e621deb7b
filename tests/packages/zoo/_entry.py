"""What a model of a package is to a test, and what several of them need."""

import typing

import keras
import numpy as np

L = keras.layers
# Images of each model.
COUNT = 6
MODELS = []


class Entry(typing.NamedTuple):
    package: str
    name: str
    module: str
    make: typing.Callable
    fails: str | None
    dtype: str


# What is imported, where it is called otherwise.
MODULES = {
    "keras-tcn": "tcn",
    "classification-models-3D": "classification_models_3D.kkeras",
}


def model(package, name, fails=None, dtype="float32"):
    """Adds a model.

    Args:
        package: What pip calls the package.
        name: Name of the model.
        fails: What plain Keras says to it, if it cannot be made.
        dtype: Where float32 leaves nothing of gradients to compare, since
            dozens of normalizations follow one another, "float64".
    """

    def add(make):
        MODELS.append(
            Entry(
                package,
                name,
                MODULES.get(package, package.replace("-", "_")),
                make,
                fails,
                dtype,
            )
        )
        return make

    return add


def images(*shape, count=COUNT):
    images = np.random.default_rng(0).uniform(size=(count, *shape))
    return images.astype(keras.config.floatx())


def classified(features, classes=5):
    """Feature maps of a backbone, with the usual head."""
    x = L.GlobalAveragePooling2D()(features.output)
    x = L.Dense(classes, activation="softmax")(x)
    return keras.Model(features.input, x)


def boxes(count=COUNT, of=2, size=64):
    """Corners of boxes in each image, as fractions of its size."""
    rng = np.random.default_rng(1)
    first = rng.uniform(0.05, 0.4, (count, of, 2))
    last = first + rng.uniform(0.2, 0.5, (count, of, 2))
    return (np.concatenate([first, last], -1) * size).astype("f4")
