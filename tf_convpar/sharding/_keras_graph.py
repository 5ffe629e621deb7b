"""Nodes and shapes of the graph of a Keras model."""

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


def shape_for(tensor: Any, batch: Any) -> tuple[Any, ...]:
    """The shape of a tensor of a graph, in a batch of so many samples.

    ```python
    shape_for(keras.KerasTensor((None, 8, 8, 3)), 32)  # (32, 8, 8, 3)
    shape_for(keras.KerasTensor(()), 32)  # (), as of the largest of all
    ```
    """
    return (batch, *tensor.shape[1:])[: len(tensor.shape)]


def is_graph(layer: Any) -> bool:
    """Whether a layer is a model that has nodes of its own."""
    return isinstance(layer, Functional | keras.Sequential)
