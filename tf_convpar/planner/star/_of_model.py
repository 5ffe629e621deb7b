"""Reads the convolutions of a Keras model, as the star plans them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import layers
from tf_convpar import sharding
from tf_convpar._compat.keras import layers_of
from tf_convpar.algorithms import Geometry
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution
from tf_convpar.sharding import Graph
from tf_convpar.strategy.arguments import check_wire_dtype


def of_model(
    model: Any, batch: int, wire_bytes: int = 4, slots: int = 0
) -> Network:
    """The convolutions of a Keras model.

    ```python
    of_model(keras.applications.VGG16(weights=None), batch=32)
    ```

    These are the convolutions without groups of `Conv1D`, `Conv2D`, `Conv3D`
    and their parallel forms, also in models within the model. A convolution
    needs no gradient of its input if no layer before it learns. This is read
    off the graph of sequential and functional models. Other models have no
    graph: there every convolution is taken to need it.

    Args:
        model: Any model that is built, for images of known size.
        batch: Images in a step.
        wire_bytes: Bytes of a number that travels between devices.
        slots: Numbers that the optimizer keeps for each parameter.

    Returns:
        The network.

    Raises:
        ValueError: The model has no such convolution, or was built for
            images of unknown size.
    """
    biases = {
        layer.name: bool(getattr(layer, "use_bias", True))
        for layer in layers_of(model)
    }
    convolutions = [
        convolution_of(name, geometry, biases[name])
        for name, geometry in layers.convolutions(model, batch)
    ]
    if not convolutions:
        raise ValueError(
            "Expected a built model with at least one convolution. Received: "
            f"'{model.name}', whose layers are "
            f"{[layer.name for layer in model.layers]}."
        )
    calls = sharding.calls_of(model).calls if sharding.is_graph(model) else ()
    # A layer that is called twice needs what either call needs.
    first = {c.name for c in calls} - {c.name for c in calls if c.before}
    convolutions = [
        dataclasses.replace(one, input_gradient=one.name not in first)
        for one in convolutions
    ]
    return Network(tuple(convolutions), batch, wire_bytes, slots)


def graph_and_network(
    model: Any, batch: int, wire_dtype: str | None, slots: int
) -> tuple[Graph, Network]:
    """A model's graph, and its convolutions as `of_model` finds them.

    Raises:
        ValueError: As for `of_model`; or the model has no graph, a convolution
            is within another layer and has no times of its own, or tensors
            cannot travel in this dtype.
    """
    network = of_model(model, batch, wire_bytes(wire_dtype), slots)
    graph = sharding.calls_of(model)
    called = {call.name for call in graph.calls if call.layer is not None}
    within = [c.name for c in network if c.name not in called]
    if within:
        raise ValueError(
            "Expected convolutions that are layers of the model or of a model "
            "in it: the star plans each by its own times. Received some "
            f"within other layers: {', '.join(within)}."
        )
    return graph, network


def convolution_of(
    name: str, geometry: Geometry, bias: bool
) -> StarConvolution:
    """The convolution of a geometry.

    Raises:
        ValueError: Its images have no known size.
    """
    return StarConvolution(
        name,
        _known(name, geometry.image),
        _known(name, geometry.output),
        geometry.channels,
        geometry.filters,
        tuple(geometry.window),
        bias=bias,
    )


def wire_bytes(wire_dtype: str | None) -> int:
    """Bytes of a number that travels between devices; float32 by default.

    Raises:
        ValueError: Tensors cannot travel in this dtype.
    """
    check_wire_dtype(wire_dtype)
    return int(tf.as_dtype(wire_dtype or "float32").size)


def _known(name: str, pixels: Sequence[int | None]) -> tuple[int, ...]:
    known = tuple(n for n in pixels if n is not None)
    if len(known) != len(pixels):
        raise ValueError(
            "Expected a model for images of known size. Received: layer "
            f"'{name}' with {tuple(pixels)} pixels. Build the model with the "
            "size of an image, as in keras.Input((224, 224, 3))."
        )
    return known
