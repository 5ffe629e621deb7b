"""The convolutions of a model, as `tf_convpar.algorithms` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.algorithms._algorithm import Geometry

# Those that have a choice of algorithms, and of a plan.
KINDS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


def convolutions(
    model: keras.Model, batch: int | None = None
) -> list[tuple[str, Geometry]]:
    """Every convolution that has a choice of algorithms, in layer order.

    ```python
    model = keras.applications.VGG16(weights=None)
    convolutions(model, batch=32)[0]
    # ("block1_conv1", Geometry((224, 224), 3, 64, (3, 3), padding="same", ...
    ```

    Those are the convolutions without groups of `Conv1D`, `Conv2D`, `Conv3D`
    and their parallel forms, also in models within the model.

    Args:
        model: Any that is built. The size of an image is known where the
            model was built with it.
        batch: Images; None if unknown.

    Returns:
        Names of layers, and what they compute.
    """
    return [
        (layer.name, geometry(layer, _input_shape(layer), batch))
        for layer in model._flatten_layers(include_self=False)
        if isinstance(layer, KINDS) and layer.built and layer.groups == 1
    ]


def geometry(
    layer: Any, input_shape: Sequence[int | None], batch: int | None
) -> Geometry:
    """What a convolution without groups computes.

    Args:
        layer: Keras' or ours; need not be built.
        input_shape: With the batch, in the layer's data format.
        batch: Images; None if unknown.
    """
    image: list[Any] = list(input_shape[1:])
    channels = image.pop(0 if layer.data_format == "channels_first" else -1)
    padding = layer.padding
    if padding == "causal":
        # Keras pads before the image, and convolves what comes of it.
        reach = (layer.kernel_size[0] - 1) * layer.dilation_rate[0]
        image = [n and n + reach for n in image]
        padding = "valid"
    return Geometry(
        tuple(image),
        channels,
        layer.filters,
        window=tuple(layer.kernel_size),
        strides=tuple(layer.strides),
        padding=padding,
        dilation=tuple(layer.dilation_rate),
        batch=batch,
        dtype=layer.compute_dtype,
    )


def _input_shape(layer: Any) -> Sequence[int | None]:
    shape: Sequence[int | None] = layer.get_build_config()["input_shape"]
    return shape
