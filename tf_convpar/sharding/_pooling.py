"""Pooling on one device by this package's ops, and max pooling's gradient."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import Attached
from tf_convpar.layers import is_inference
from tf_convpar.layers import is_merged
from tf_convpar.layers import unpadded
from tf_convpar.sharding._attach import joined

_L = keras.layers


class Pooled(Attached):
    """Takes the place of the `call` of a layer that `pools`.

    ```python
    layer.call = Pooled(layer)
    ```

    Args:
        layer: A layer of maxima or means.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __call__(self, inputs: Any) -> Any:
        """Does what the layer's own `call` does."""
        if is_merged():
            return type(self._layer).call(self._layer, joined(inputs))
        return pooled(self._layer, joined(inputs))


def pooled(layer: Any, maps: tf.Tensor) -> Any:
    """Computes a layer that `pools`, by ops where they are faster.

    Args:
        layer: A layer of maxima or means.
        maps: Its input.
    """
    # The window of a mean of all is the image.
    whole = isinstance(layer, _L.GlobalAveragePooling2D)
    if not (whole and None in maps.shape[1:3]):
        if is_inference() and maps.dtype == tf.float32 and ops.load():
            return _in_inference(layer, maps)
        if isinstance(layer, _L.MaxPooling2D):
            return ops.max_pool(
                maps, layer.pool_size, layer.strides[0], layer.padding
            )
    return type(layer).call(layer, maps)


def _in_inference(layer: Any, images: tf.Tensor) -> Any:
    if isinstance(layer, _L.GlobalAveragePooling2D):
        means = ops.pool(images, images.shape[1:3], 1, kind="average")
        shape = [-1, *([1, 1] if layer.keepdims else []), means.shape[-1]]
        return tf.reshape(means, shape)
    window = layer.pool_size, layer.strides[0], layer.padding
    if isinstance(layer, _L.AveragePooling2D):
        return ops.pool(images, *window, kind="average")
    if layer.padding == "valid":
        images, zeros = unpadded(images)
        return ops.pool(images, *window, zeros)
    return ops.pool(images, *window)


def pools(layer: Any, shape: Any) -> bool:
    """Whether a layer on one device is one that `Pooled` can compute.

    Args:
        layer: A layer of a graph.
        shape: Shape of its input.
    """
    if getattr(layer, "data_format", None) != "channels_last":
        return False
    if type(layer) is _L.GlobalAveragePooling2D:
        return None not in shape[1:]
    windows = type(layer) in (_L.MaxPooling2D, _L.AveragePooling2D)
    return windows and layer.strides[0] == layer.strides[1]
