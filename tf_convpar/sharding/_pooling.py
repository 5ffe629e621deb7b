"""Pooling on one device by this package's ops, and max pooling's gradient."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.layers import is_inference
from tf_convpar.layers import unpadded

_L = keras.layers


def pooled(layer: Any, maps: tf.Tensor) -> Any:
    """Computes a layer of maxima or means, by ops where they are faster.

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
