"""The smallest network of the paper: 50 and 500 kernels of 5x5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

import tf_convpar as convpar

FILTERS = (50, 500)
_KERNEL_SIZE = 5


def check_shards(shards: Sequence[float]) -> None:
    """Raises ValueError unless every convolution can be cut by `shards`."""
    for filters in FILTERS:
        convpar.ConvParallel2D(filters, _KERNEL_SIZE, shards=shards)


def build(conv: Any, seed: int, **kwargs: Any) -> keras.Model:
    """Builds and compiles the network.

    ```python
    plain = build(keras.layers.Conv2D, seed=1)
    split = build(convpar.ConvParallel2D, seed=1, shards=(1.0, 2.0, 2.0))
    ```

    Args:
        conv: The class of its convolutions.
        seed: Seed of its weights, which are the same for either class.
        **kwargs: Further arguments of the convolutions.
    """
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((32, 32, 3))]
    for filters in FILTERS:
        layers += [
            conv(
                filters,
                _KERNEL_SIZE,
                activation="relu",
                name=f"conv_{filters}",
                **kwargs,
            ),
            keras.layers.MaxPooling2D(),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.SGD(0.002, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
