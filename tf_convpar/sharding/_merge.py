"""`merge`: back to plain Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.copying import Copies
from tf_convpar.layers import ConvParallel
from tf_convpar.sharding import _conversion
from tf_convpar.sharding._attach import Attached
from tf_convpar.sharding._trainable import Followers
from tf_convpar.sharding._training import settle_xla


def merge(model: keras.Model) -> keras.Model:
    """A copy of a model with plain Keras layers and bit for bit its weights.

    ```python
    plain = convpar.merge(model)
    plain.save("model.keras")  # loads where this package is not installed
    ```

    Args:
        model: A Keras model, with parallel layers or without. It stays as it
            is.

    Returns:
        A new model with the same weights, optimizer, its state, loss and
        metrics. It runs on one device, and knows nothing of shards or
        algorithms.

    Raises:
        ValueError: `model` is not a Keras model.
    """
    check_model(model)

    def plain(layer: Any, held_by: Sequence[Any]) -> Any:
        del held_by
        if isinstance(layer, ConvParallel):
            return _conversion.plain(layer, copies)
        return None

    copies = Copies(plain, leave_out=(Attached, Followers))
    new = copies.of(model)
    copies.finish(model)
    settle_xla(copies.pairs)
    return new


def check_model(model: Any) -> None:
    """Raises ValueError unless this is a model."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"Expected a keras.Model. Received: {model!r} "
            f"(of type {type(model).__name__})."
        )
