"""The demo's networks: ResNet-9, and the smallest one of paper 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

import tf_convpar as convpar

_PAPER_FILTERS = (50, 500)
_PAPER_KERNEL_SIZE = 5


def resnet9(seed: int) -> keras.Model:
    """Builds and compiles ResNet-9, which trains on small images fastest.

    ```python
    model = resnet9(seed=1)
    ```

    It is David Page's for DAWNBench
    (https://myrtle.ai/how-to-train-your-resnet): eight convolutions of 3x3 with
    64 to 512 kernels, 6.6 million weights.

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
    return _compiled(model, learning_rate=2e-4)


def paper(conv: Any, seed: int, **kwargs: Any) -> keras.Model:
    """Builds and compiles the network with 50 and 500 kernels of 5x5.

    ```python
    plain = paper(keras.layers.Conv2D, seed=1)
    split = paper(convpar.ConvParallel2D, seed=1, shards=(1.0, 2.0, 2.0))
    ```

    Args:
        conv: The class of its convolutions.
        seed: Seed of its weights, which are the same for either class.
        **kwargs: Further arguments of the convolutions.
    """
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input((32, 32, 3))
    for filters in _PAPER_FILTERS:
        x = conv(
            filters,
            _PAPER_KERNEL_SIZE,
            activation="relu",
            name=f"conv_{filters}",
            **kwargs,
        )(x)
        x = layers.MaxPooling2D()(x)
    outputs = layers.Dense(10)(layers.Flatten()(x))
    model = keras.Model(inputs, outputs, name="paper")
    return _compiled(model, learning_rate=0.002)


def check_shards(shards: Sequence[float]) -> None:
    """Raises ValueError unless the paper's layers can be cut by `shards`."""
    for filters in _PAPER_FILTERS:
        convpar.ConvParallel2D(filters, _PAPER_KERNEL_SIZE, shards=shards)


def _compiled(model: keras.Model, learning_rate: float) -> keras.Model:
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _convolved(x: Any, filters: int, name: str) -> Any:
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def _residual(x: Any, name: str) -> Any:
    y = _convolved(x, x.shape[-1], f"{name}_1")
    return layers.Add()([x, _convolved(y, x.shape[-1], f"{name}_2")])
