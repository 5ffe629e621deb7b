"""Which activations may run on shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

_NAMES = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish "
    "hard_tanh leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid "
    "silu soft_shrink softplus softsign sparse_plus sparse_sigmoid "
    "squareplus swish tanh tanh_shrink threshold"
).split()


def is_elementwise_activation(activation: Any) -> bool:
    """Whether an activation is known to treat every number alone.

    ```python
    is_elementwise_activation(keras.activations.relu)  # True
    ```
    """
    return activation is None or activation in _named(_NAMES)


def is_per_sample_activation(activation: Any) -> bool:
    """Whether an activation is known to treat every sample alone.

    All activations of Keras do.

    ```python
    is_per_sample_activation(keras.activations.softmax)  # True
    ```
    """
    mixing = "glu log_softmax softmax sparsemax".split()
    return activation is None or activation in _named([*_NAMES, *mixing])


def _named(names: Iterable[str]) -> set[Any]:
    return {getattr(keras.activations, name, None) for name in names}
