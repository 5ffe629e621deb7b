"""The networks that are trained, each with its images."""

import sys
from pathlib import Path

import keras

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import digits
import images


def lenet():
    """LeNet for handwritten digits: 61,706 weights."""
    conv, pool = keras.layers.Conv2D, keras.layers.MaxPooling2D
    return keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            *(conv(6, 5, activation="relu"), pool()),
            *(conv(16, 5, activation="relu"), pool()),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def resnet8():
    """ResNet-8 of He et al. (2015), section 4.2: 78,042 weights.

    Three stages of one block. Where channels grow, a 1x1 convolution is on the
    way around it.
    """
    given = keras.Input((images.PIXELS, images.PIXELS, 3))
    x = keras.layers.ReLU()(_normalized(16, 3, 1)(given))
    for channels in (16, 32, 64):
        strides = channels // x.shape[-1]
        around = x
        if strides > 1:
            around = _normalized(channels, 1, strides)(x)
        x = keras.layers.ReLU()(_normalized(channels, 3, strides)(x))
        x = _normalized(channels, 3, 1)(x)
        x = keras.layers.ReLU()(keras.layers.Add()([x, around]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(given, keras.layers.Dense(images.CLASSES)(x))


def _normalized(channels, size, strides):
    """A convolution and its batch normalization."""
    return keras.Sequential(
        [
            keras.layers.Conv2D(
                channels,
                size,
                strides,
                padding="same",
                use_bias=False,
                kernel_initializer="he_normal",
            ),
            # Its moving averages follow within some tens of steps.
            keras.layers.BatchNormalization(momentum=0.9),
        ]
    )


NETWORKS = {"lenet": (lenet, digits.load), "resnet8": (resnet8, images.load)}
