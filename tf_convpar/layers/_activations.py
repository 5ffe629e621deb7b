"""Which activations may run on shards."""

from __future__ import annotations

from typing import Any

import keras

_NAMES = (
    "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish "
    "hard_tanh leaky_relu linear log_sigmoid mish relu relu6 selu sigmoid "
    "silu soft_shrink softplus softsign sparse_plus sparse_sigmoid "
    "squareplus swish tanh tanh_shrink threshold"
).split()


def is_elementwise_activation(activation: Any) -> bool:
    """Whether it treats every number alone, and not softmax, or unknown.

    ```python
    is_elementwise_activation(keras.activations.relu)  # True
    ```
    """
    known = {getattr(keras.activations, name, None) for name in _NAMES}
    return activation is None or activation in known
