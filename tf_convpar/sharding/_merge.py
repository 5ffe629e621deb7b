"""`merge`: back to plain Keras."""

from __future__ import annotations

from typing import Any

import keras

from tf_convpar.sharding import _rebuild
from tf_convpar.sharding import _twins


def merge(model: keras.Model) -> keras.Model:
    """The model of plain Keras layers, weights bit for bit the same.

    ```python
    plain = convpar.merge(model)
    plain.save("model.keras")  # loads where this package is not installed
    ```

    Args:
        model: Sequential or functional, of parallel layers or not. It stays
            as it is.

    Returns:
        A new model with the same weights, optimizer, its state, loss and
        metrics. It runs on one device, and knows nothing of shards or
        algorithms.

    Raises:
        ValueError: The model is a subclass with a `call` of its own, or is
            not built.
    """
    _rebuild.check(model)
    pairs: list[tuple[Any, Any]] = []

    def make(layer: Any) -> Any:
        new = _twins.plain(layer)
        pairs.append((layer, new))
        return new

    new = _rebuild.rebuild(model, make)
    _rebuild.copy_weights(pairs)
    _rebuild.copy_training(model, new)
    return new
