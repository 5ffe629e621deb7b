"""Which layers are the same work: they are measured once."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tf_convpar.planner._graph import Call
from tf_convpar.planner._graph import Graph

# What changes no time of a layer by itself.
_NO_MATTER = ("name", "shards", "split", "wire_dtype", "trainable", "seed")


def key(graph: Graph, call: Call) -> str:
    """The same for layers that take the same time.

    ```python
    {key(graph, call) for call in graph.calls}  # fewer than calls
    ```
    """
    if id(call) not in graph.keys:
        graph.keys[id(call)] = _key(graph, call)
    return graph.keys[id(call)]


def _key(graph: Graph, call: Call) -> str:
    layer = call.layer
    config: dict[str, Any] = {}
    if hasattr(layer, "get_config"):
        config = {
            k: v
            for k, v in layer.get_config().items()
            if k not in _NO_MATTER
            and not k.endswith("initializer")
            # Parallel layers have one, of None the work is the Keras layer's.
            and not (k == "algorithm" and v in (None, "direct"))
        }
    shapes = [graph.tensors[i].shape for i in call.inputs]
    arguments = call.node.arguments if call.node is not None else None
    numbers = []
    if arguments is not None and not hasattr(layer, "weights"):
        numbers = [
            repr(x) for x in arguments.args if isinstance(x, int | float)
        ]
    content = (
        _type(layer),
        config,
        shapes,
        numbers,
        [graph.tensors[i].width for i in call.inputs],
        call.before,
        bool(getattr(layer, "trainable", True)),
    )
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(graph: Graph) -> str:
    """A hash of the layers, their shapes and the graph, whatever the batch."""
    content = [
        (c.inputs, c.outputs, key(graph, c) if c.layer is not None else "")
        for c in graph.calls
    ]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _type(layer: Any) -> str:
    # A parallel layer alone is the Keras layer.
    return type(layer).__name__
