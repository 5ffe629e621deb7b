"""ResNet-9, the residual network that trains on small images fastest.

It is David Page's for DAWNBench (https://myrtle.ai/how-to-train-your-resnet):
eight convolutions of 3x3 with 64 to 512 kernels, 6.6 million weights.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def build(seed: int) -> keras.Model:
    """Builds and compiles the network, as plain Keras.

    ```python
    model = build(seed=1)
    ```

    Args:
        seed: Seed of its weights.
    """
    keras.utils.set_random_seed(seed)
    inputs = x = keras.Input((32, 32, 3))
    x = _convolved(x, 64, "stem")
    x = layers.MaxPooling2D()(_convolved(x, 128, "stage1"))
    x = _residual(x, "stage1_residual")
    x = layers.MaxPooling2D()(_convolved(x, 256, "stage2"))
    x = layers.MaxPooling2D()(_convolved(x, 512, "stage3"))
    x = _residual(x, "stage3_residual")
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10)(x), name="resnet9")
    # So slow that the last bits, which differ, stay small for these steps.
    model.compile(
        keras.optimizers.SGD(2e-4, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def _convolved(x: Any, filters: int, name: str) -> Any:
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def _residual(x: Any, name: str) -> Any:
    y = _convolved(x, x.shape[-1], f"{name}_1")
    return layers.Add()([x, _convolved(y, x.shape[-1], f"{name}_2")])
