"""The one way through the graph of a Keras model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras.src.models.functional import Functional


def nodes(model: Any) -> Iterator[Any]:
    """The calls of a model's layers, in the order in which they run.

    ```python
    for node in nodes(model):
        node.operation, node.input_tensors, node.outputs
    ```

    Args:
        model: Sequential or functional, built. Models within it are one call
            each.
    """
    depths = graph_of(model)._nodes_by_depth
    for depth in sorted(depths, reverse=True):
        yield from depths[depth]


def graph_of(model: Any) -> Any:
    """What has the nodes: of a sequential model one that it made."""
    return getattr(model, "_functional", None) or model


def is_graph(layer: Any) -> bool:
    """Whether a layer is a model that has nodes of its own."""
    return isinstance(layer, Functional | keras.Sequential)
