"""Reads the convolutions of a Keras model, as the star plans them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_convpar import layers
from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import nodes_by_depth
from tf_convpar.planner.star._network import Network
from tf_convpar.planner.star._network import StarConvolution


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
    needs: dict[str, bool] = {}
    _follow(model, False, needs)
    biases = {
        layer.name: bool(getattr(layer, "use_bias", True))
        for layer in layers_of(model)
    }
    convolutions = []
    for name, geometry in layers.convolutions(model, batch):
        image, output = _known(name, geometry.image), geometry.output
        convolutions.append(
            StarConvolution(
                name,
                image,
                _known(name, output),
                geometry.channels,
                geometry.filters,
                tuple(geometry.window),
                bias=biases[name],
                input_gradient=needs.get(name, True),
            )
        )
    if not convolutions:
        raise ValueError(
            "Expected a built model with at least one convolution. Received: "
            f"'{model.name}', whose layers are "
            f"{[layer.name for layer in model.layers]}."
        )
    return Network(tuple(convolutions), batch, wire_bytes, slots)


def _known(name: str, pixels: Sequence[int | None]) -> tuple[int, ...]:
    known = tuple(n for n in pixels if n is not None)
    if len(known) != len(pixels):
        raise ValueError(
            "Expected a model for images of known size. Received: layer "
            f"'{name}' with {tuple(pixels)} pixels. Build the model with the "
            "size of an image, as in keras.Input((224, 224, 3))."
        )
    return known


def _follow(model: Any, learns: bool, needs: dict[str, bool]) -> bool:
    """Notes which layers of a model have a layer before them that learns.

    Args:
        model: A model or a layer.
        learns: Whether a layer before it learns.
        needs: Whether the input of each layer needs a gradient, by the layer's
            name. This function writes it.

    Returns:
        Whether the model, or a layer before it, learns.
    """
    nodes = nodes_by_depth(model)
    if nodes is None:
        name = getattr(model, "name", "")
        # A layer may be called at several places.
        needs[name] = needs.get(name, False) or learns
        return learns or bool(getattr(model, "trainable_weights", ()))
    after: dict[int, bool] = {}
    for depth in sorted(nodes, reverse=True):
        for node in nodes[depth]:
            before = any(
                after.get(id(parent), False) for parent in node.parent_nodes
            )
            if node.is_input:
                after[id(node)] = learns
            else:
                after[id(node)] = _follow(node.operation, before, needs)
    return any(after.values())
