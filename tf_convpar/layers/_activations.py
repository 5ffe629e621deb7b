"""Which activations may run on shards, and which are part of an op."""

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


def op_activation(activation: Any) -> str | None:
    """The name by which this package's ops know an activation, if they do.

    ```python
    op_activation(keras.activations.silu)  # "silu"
    ```
    """
    names = {
        keras.activations.relu: "relu",
        keras.activations.relu6: "relu6",
        keras.activations.silu: "silu",
        keras.activations.gelu: "gelu",
    }
    return names.get(activation)


def _named(names: Iterable[str]) -> set[Any]:
    return {getattr(keras.activations, name, None) for name in names}
