"""Copies of what only models have: input layers, graphs, and a strategy."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat import keras as private
from tf_convpar._compat.keras import Functional


def input_like(layer: Any) -> Any:
    """A copy of an input layer."""
    new = keras.layers.InputLayer(
        batch_shape=layer.batch_shape,
        dtype=layer.dtype,
        sparse=layer.sparse,
        ragged=layer.ragged,
        optional=layer.optional,
        name=layer.name,
    )
    # A model finds its inputs in a dict by this name.
    new.output.name = layer.output.name
    return new


def outdated(model: keras.Sequential) -> list[Any]:
    """The graphs that a model had before its last layer was added.

    Keras goes on tracking them; copies leave them out.
    """
    parts = (
        private.functional_of(model),
        *private.layers_of(model, recursive=False),
    )
    current = set(map(id, parts))
    return [
        layer
        for layer in private.tracked_layers(model)
        if isinstance(layer, Functional) and id(layer) not in current
    ]


def join_strategy(model: Any) -> None:
    """Lets the strategy in scope train a model, as if it were made there."""
    strategy = None
    if tf.distribute.has_strategy():
        strategy = tf.distribute.get_strategy()
    private.join(model, strategy)
