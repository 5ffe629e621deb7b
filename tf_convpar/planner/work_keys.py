"""Keys of layers, the same for layers with the same work to measure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tf_convpar.sharding import Call
from tf_convpar.sharding import Graph

# Settings that by themselves do not change a layer's time.
_NO_MATTER = ("name", "shards", "split", "wire_dtype", "trainable", "seed")


def key(graph: Graph, call: Call) -> str:
    """Returns a key that is the same for calls that take the same time.

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
            for k, v in _config_of(layer).items()
            if k not in _NO_MATTER
            and not k.endswith("initializer")
            # Only parallel layers have an algorithm. Without one, with the
            # direct one, or with that of all others, they do the work of the
            # Keras layer, or of that with the algorithm of the calibration.
            and not (
                k == "algorithm"
                and (v in (None, "direct") or len(graph.algorithms) == 1)
            )
        }
    shapes = [graph.tensors[i].shape for i in call.inputs]
    arguments = call.node.arguments if call.node is not None else None
    numbers = []
    if arguments is not None and not hasattr(layer, "weights"):
        numbers = [
            repr(x) for x in arguments.args if isinstance(x, int | float)
        ]
    content = (
        # A parallel layer has the class name of the Keras layer that it
        # replaces, and on one device does the same work.
        type(layer).__name__,
        config,
        shapes,
        numbers,
        [graph.tensors[i].width for i in call.inputs],
        call.before,
        bool(getattr(layer, "trainable", True)),
    )
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _config_of(layer: Any) -> dict[str, Any]:
    """A layer's settings; plain attributes, if it has no `get_config`."""
    try:
        config: dict[str, Any] = layer.get_config()
    except Exception:  # Of the user's, or Keras' where arguments are arrays.
        config = {
            name: value
            for name, value in vars(layer).items()
            if isinstance(value, bool | int | float | str)
            and not name.startswith("_")
        }
    return config


def fingerprint(graph: Graph) -> str:
    """A hash of the graph, its layers and their shapes without the batch."""
    content = [
        (c.inputs, c.outputs, key(graph, c) if c.layer is not None else "")
        for c in graph.calls
    ]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def check(graph: Graph, received: str, what: str = "calibration") -> None:
    """Checks by its fingerprint that a calibration or plan is of a graph.

    Raises:
        ValueError: It was made for another model.
    """
    expected = fingerprint(graph)
    if received != expected:
        again = ": calibrate again" if what == "calibration" else ""
        raise ValueError(
            f"Expected a {what} of '{graph.name}', fingerprint {expected}. "
            f"Received one of another model, {received}{again}."
        )
