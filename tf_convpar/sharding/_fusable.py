"""Which layers on one device this package computes, often with neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_convpar._compat.keras import is_adapted
from tf_convpar.layers import op_activation

_L = keras.layers


def fuses(layer: Any, shapes: Sequence[Any]) -> bool:
    """Whether `Fused` can compute a layer on one device.

    Args:
        layer: A layer of a graph.
        shapes: Shapes of its inputs.
    """
    rank = len(shapes[0])
    if any(not shape or shape[-1] is None for shape in shapes):
        return False
    if type(layer) is _L.BatchNormalization:
        batch_moments = (
            not getattr(layer, "renorm", False) and not layer.synchronized
        )
        return batch_moments and layer.axis % rank == rank - 1
    if type(layer) is _L.LayerNormalization:
        last = [axis % rank for axis in _as_list(layer.axis)] == [rank - 1]
        return last and not layer.rms_scaling
    if type(layer) is _L.GroupNormalization:
        return rank > 1 and layer.axis % rank == rank - 1
    if type(layer) is _L.Normalization:
        last = [axis % rank for axis in _as_list(layer.axis)] == [rank - 1]
        return last and not layer.invert
    if type(layer) is _L.Rescaling:
        rank_of_numbers = max(np.ndim(layer.scale), np.ndim(layer.offset))
        # Keras goes by this format, whatever the images.
        first = keras.config.image_data_format() == "channels_first"
        return rank_of_numbers <= (0 if first else 1)
    if type(layer) is _L.Dense:
        adapted = is_adapted(layer) or layer.quantization_mode is not None
        return not adapted
    if type(layer) is _L.GlobalAveragePooling2D:
        known = None not in shapes[0][1:]
        return known and bool(layer.data_format == "channels_last")
    if type(layer) in (_L.MaxPooling2D, _L.AveragePooling2D):
        square = layer.strides[0] == layer.strides[1]
        return square and bool(layer.data_format == "channels_last")
    if type(layer) is _L.Add:
        return True
    if type(layer) is _L.Concatenate:
        return bool(layer.axis % rank == rank - 1)
    if type(layer) is _L.Multiply:
        return len(shapes) == 2 and _scales_channels(
            *sorted(shapes, key=pixels)
        )
    if type(layer) is _L.ZeroPadding2D:
        return bool(layer.data_format == "channels_last")
    return type(layer) in (_L.ReLU, _L.Activation) and (
        activation_of(layer) is not None
    )


def activation_of(layer: Any) -> str | None:
    """The activation of a layer, if there is an op with it."""
    if isinstance(layer, _L.ReLU):
        settings = layer.max_value, layer.negative_slope, layer.threshold
        return {(None, 0, 0): "relu", (6, 0, 0): "relu6"}.get(settings)
    return op_activation(layer.activation)


def pixels(shape: Sequence[int | None]) -> int:
    """Count of pixels of an image; many where that is not known."""
    return math.prod(n or 1 << 16 for n in shape[1:-1])


def _as_list(axes: Any) -> Sequence[int]:
    return list(axes) if isinstance(axes, list | tuple) else [axes]


def _scales_channels(factors: Any, maps: Any) -> bool:
    """Whether there is a factor for each channel of each image."""
    images = len(factors) == len(maps) == 4
    fits = images and factors[0] == maps[0] and factors[-1] == maps[-1]
    return bool(fits and pixels(factors) == 1 < pixels(maps))
