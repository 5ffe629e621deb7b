"""The one way through the graph of a Keras model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from tf_convpar._compat.keras import Functional
from tf_convpar._compat.keras import graph_of as graph_of
from tf_convpar._compat.keras import nodes_by_depth


def nodes(model: Any) -> Iterator[Any]:
    """The calls of a model's layers, in the order in which they run.

    ```python
    for node in nodes(model):
        node.operation, node.input_tensors, node.outputs
    ```

    Args:
        model: A built model, Sequential or functional. A model within it is
            one call.
    """
    depths: Any = nodes_by_depth(model)
    for depth in sorted(depths, reverse=True):
        yield from depths[depth]


def is_graph(layer: Any) -> bool:
    """Whether a layer is a model that has nodes of its own."""
    return isinstance(layer, Functional | keras.Sequential)
