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
    needs = _needs_input_gradient(model)
    convolutions = [
        dataclasses.replace(one, input_gradient=needs.get(one.name, True))
        for one in convolutions
    ]
    return Network(tuple(convolutions), batch, wire_bytes, slots)


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


def _needs_input_gradient(model: Any) -> dict[str, bool]:
    """Whether a layer before it learns, at any of its calls, by layer name."""
    learns_before: dict[str, bool] = {}
    if sharding.is_graph(model):
        for call in sharding.calls_of(model).calls:
            learns_before[call.name] = (
                learns_before.get(call.name, False) or call.before
            )
    return learns_before
