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
    return activation is None or _is_one_of(activation, _NAMES)


def is_per_sample_activation(activation: Any) -> bool:
    """Whether an activation is known to treat every sample alone.

    All activations of Keras do.

    ```python
    is_per_sample_activation(keras.activations.softmax)  # True
    ```
    """
    mixing = "glu log_softmax softmax sparsemax".split()
    return activation is None or _is_one_of(activation, [*_NAMES, *mixing])


def op_activation(activation: Any) -> str | None:
    """The name by which this package's ops know an activation, if they do.

    ```python
    op_activation(keras.activations.silu)  # "silu"
    ```
    """
    names = ("relu", "relu6", "silu", "gelu")
    return next((n for n in names if _is_one_of(activation, [n])), None)


def _is_one_of(activation: Any, names: Iterable[str]) -> bool:
    """Whether an activation, which may have no hash, is a named one."""
    return any(
        activation is getattr(keras.activations, name, None) for name in names
    )
