"""The convolutions of a model, as `tf_convpar.algorithms` describes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar._compat.keras import layers_of
from tf_convpar.algorithms import Geometry

# The kinds of layers for which algorithms and plans are chosen.
KINDS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


def convolutions(
    model: keras.Model, batch: int | None = None
) -> list[tuple[str, Geometry]]:
    """Every convolution whose algorithm can be chosen, in layer order.

    ```python
    model = keras.applications.VGG16(weights=None)
    convolutions(model, batch=32)[0]
    # ("block1_conv1", Geometry((224, 224), 3, 64, (3, 3), padding="same", ...
    ```

    Those are `Conv1D`, `Conv2D`, `Conv3D` and their parallel forms without
    groups, also in models within the model.

    Args:
        model: A built model. The size of an image is known if the model was
            built with it.
        batch: Number of images; None if unknown.

    Returns:
        Pairs of a layer's name and its geometry.
    """
    return [
        (layer.name, geometry(layer, _input_shape(layer), batch))
        for layer in layers_of(model)
        if isinstance(layer, KINDS) and layer.built and layer.groups == 1
    ]


def geometry(
    layer: Any, input_shape: Sequence[int | None], batch: int | None
) -> Geometry:
    """The geometry of a convolution without groups.

    Args:
        layer: A layer of Keras or of this package, which need not be built.
        input_shape: Shape of its input with the batch, in its data format.
        batch: Number of images; None if unknown.
    """
    image: list[Any] = list(input_shape[1:])
    channels = image.pop(0 if layer.data_format == "channels_first" else -1)
    padding = layer.padding
    if padding == "causal":
        # Keras pads the image before its first step, then convolves it.
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
