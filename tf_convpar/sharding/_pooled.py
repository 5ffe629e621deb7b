"""Pooling on one device: maxima with a gradient of this package's own."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar import ops
from tf_convpar.layers import Attached
from tf_convpar.layers import is_merged
from tf_convpar.sharding._attach import joined


class Pooled(Attached):
    """Takes the place of the `call` of a layer that `pools`.

    ```python
    layer.call = Pooled(layer)
    ```

    Args:
        layer: A layer of maxima.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, inputs: Any) -> Any:
        """Does what the layer's own `call` does."""
        layer, whole = self._layer, joined(inputs)
        if is_merged():
            return type(layer).call(layer, whole)
        return ops.max_pool(
            whole, layer.pool_size, layer.strides[0], layer.padding
        )


def pools(layer: Any) -> bool:
    """Whether a layer's maxima have such a gradient."""
    return (
        type(layer) is keras.layers.MaxPooling2D
        and layer.data_format == "channels_last"
        and layer.strides[0] == layer.strides[1]
    )
