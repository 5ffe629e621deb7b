"""Dense layers, and layers around them, as ops on single pixels of one device.

In inference a dense layer is a convolution of single pixels, whatever these
are. Such a convolution joins, normalizes and scales its input in its own pass:
layers before it leave a note on their result of how it is made.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import convolve
from tf_convpar.layers import Fusable
from tf_convpar.layers import is_inference
from tf_convpar.layers import join
from tf_convpar.layers import joined_of
from tf_convpar.layers import leave_joined
from tf_convpar.ops import Epilogue
from tf_convpar.sharding._fusable import activation_of
from tf_convpar.sharding._fusable import fuses
from tf_convpar.sharding._fusable import pixels

# Numbers of a kernel of which an arranged copy is kept, and the samples up to
# which the op needs none: it then reads a large kernel as it lies.
_MOST_KEPT, _FEW = 4 << 20, 4
# Activations of several passes.
LONG_ACTIVATIONS = ("silu", "gelu")


def merged(layer: Any, inputs: Any) -> tf.Tensor | None:
    """Computes `Concatenate` or `Multiply`, and notes its inputs on the result.

    Args:
        layer: A `Concatenate` or `Multiply` layer.
        inputs: Its inputs.

    Returns:
        Its result; None where that is left to Keras.
    """
    inference = not tf.executing_eagerly() and is_inference()
    # One layer may be called at several places, and fit at some.
    if not (inference and fuses(layer, [x.shape for x in inputs])):
        return None
    # Keras casts others, such as masks of integers, to a common dtype, and has
    # sparse ones.
    if any(
        not isinstance(x, tf.Tensor) or x.dtype != layer.compute_dtype
        for x in inputs
    ):
        return None
    if isinstance(layer, keras.layers.Concatenate):
        return join(inputs)
    # One has a single pixel.
    factors, maps = sorted(inputs, key=lambda x: pixels(x.shape))
    result: tf.Tensor = maps * factors
    leave_joined(result, maps, tf.reshape(factors, [-1, factors.shape[-1]]))
    return result


def normalized_pixels(layer: Any, inputs: Any) -> tf.Tensor | None:
    """Computes `LayerNormalization`, and notes its input on the result.

    Args:
        layer: A `LayerNormalization`.
        inputs: Its input.

    Returns:
        Its result; None where that is left to Keras.
    """
    if not (_fits(layer, inputs) and ops.load()):
        return None
    gamma, beta = _weights(layer)
    result = ops.layer_normalization(inputs, gamma, beta, layer.epsilon)
    if is_inference():
        leave_joined(result, inputs, gamma, beta, "linear", layer.epsilon)
    return result


def normalized_groups(layer: Any, inputs: Any) -> Fusable | None:
    """A `Fusable` for `GroupNormalization`; None where Keras computes it.

    Args:
        layer: A `GroupNormalization`.
        inputs: Its input.
    """
    if not (_fits(layer, inputs) and ops.load()):
        return None
    gamma, beta = _weights(layer)
    groups, epsilon = layer.groups, layer.epsilon
    return Fusable(
        lambda epilogue: ops.group_normalization(
            *(inputs, groups, gamma, beta, epsilon, epilogue.activation)
        )
    )


def _weights(layer: Any) -> list[tf.Tensor | None]:
    return [
        None if weight is None else tf.convert_to_tensor(weight)
        for weight in (layer.gamma, layer.beta)
    ]


def rescaled(layer: Any, inputs: Any) -> tf.Tensor | None:
    """Computes `Rescaling` or `Normalization` of images, of few channels.

    TensorFlow is slow there. A mean is subtracted before numbers are scaled, as
    it may be much larger than what is left.

    Args:
        layer: A `Rescaling` or `Normalization` layer.
        inputs: Images.

    Returns:
        Its result; None where that is left to Keras.
    """
    if not (_fits(layer, inputs) and ops.load()):
        return None
    channels = inputs.shape[-1]
    ones, zeros = tf.ones(channels), tf.zeros(channels)
    if isinstance(layer, keras.layers.Rescaling):
        scale, offset = (
            tf.cast(number, tf.float32) * ones
            for number in (layer.scale, layer.offset)
        )
        return ops.scale_channels([inputs], [scale], offset)
    mean, variance = (
        tf.reshape(tf.convert_to_tensor(number), [channels])
        for number in (layer.mean, layer.variance)
    )
    deviation = tf.maximum(tf.sqrt(variance), keras.backend.epsilon())
    centred = ops.scale_channels([inputs], [ones], -mean)
    return ops.scale_channels([centred], [1 / deviation], zeros)


def product(layer: Any, inputs: Any) -> Fusable | None:
    """A `Fusable` for `Dense` in inference; None where Keras computes it.

    Args:
        layer: A `Dense` layer; its own activation is not computed.
        inputs: Its input.
    """
    inference = not tf.executing_eagerly() and is_inference()
    if not (inference and _fits(layer, inputs) and ops.load()):
        return None
    kernel = tf.convert_to_tensor(layer.kernel)
    rows = inputs.shape[0] if inputs.shape.rank == 2 else None
    large = math.prod(kernel.shape) > _MOST_KEPT
    if large and (rows is None or rows > _FEW):
        return None
    if inputs.shape.rank == 4:
        kernel = tf.reshape(kernel, [1, 1, *kernel.shape])
    bias = None if layer.bias is None else tf.convert_to_tensor(layer.bias)

    def run(epilogue: Epilogue) -> tf.Tensor:
        epilogue = dataclasses.replace(
            epilogue, bias=bias, joined=joined_of(inputs), remember=True
        )
        return convolve(inputs, kernel, epilogue=epilogue, algorithm="auto")

    return Fusable(run, adds=True)


def product_in_training(layer: Any, inputs: Any) -> Fusable | None:
    """A `Fusable` for `Dense` in training, if its activation is a slow one.

    TensorFlow adds a bias within a product, and `relu` too, but has a pass for
    each operation of `gelu` and of its gradient.

    Args:
        layer: A `Dense` layer; its own activation is not computed.
        inputs: Its input.
    """
    if is_inference() or layer.bias is None:
        return None
    if not (_fits(layer, inputs) and ops.load()):
        return None
    maps = keras.ops.matmul(inputs, layer.kernel)
    bias = tf.convert_to_tensor(layer.bias)

    def run(epilogue: Epilogue) -> tf.Tensor:
        if epilogue.activation in LONG_ACTIVATIONS:
            return ops.biased(maps, bias, epilogue.activation)
        value: Any = keras.activations.get(epilogue.activation)
        return value(keras.ops.add(maps, layer.bias))

    return Fusable(run)


def activated_in_one_pass(layer: Any, inputs: Any) -> tf.Tensor | None:
    """Computes an `Activation` that TensorFlow needs several passes for.

    Args:
        layer: An `Activation` layer.
        inputs: Its input, of any kind.

    Returns:
        Its result; None where that is left to Keras.
    """
    name = activation_of(layer)
    if name not in LONG_ACTIVATIONS or not _fits(layer, inputs):
        return None
    return ops.biased(inputs, tf.zeros(inputs.shape[-1]), name)


def _fits(layer: Any, inputs: Any) -> bool:
    dense = isinstance(inputs, tf.Tensor)
    float32 = inputs.dtype == layer.compute_dtype == "float32"
    return bool(dense and float32 and fuses(layer, [inputs.shape]))
