"""Applications of Keras in a form that its export to ONNX can write."""

import keras
import numpy as np


def exportable(model):
    """The model, without what ends in a file that onnxruntime refuses.

    Keras computes a convolution whose every channel is a group by a function
    of its own, normalizes images by constants that a file asks for as inputs,
    and writes GELU by a function that ONNX lacks. Here they are a depthwise
    convolution, a scaling and the error function, of the same numbers.
    """
    found = keras.models.clone_model(model, clone_function=_replaced)
    for old, new in zip(model.layers, found.layers, strict=True):
        weights = old.get_weights()
        if isinstance(new, keras.layers.DepthwiseConv2D) and _is_grouped(old):
            weights[0] = np.swapaxes(weights[0], 2, 3)
        if not isinstance(old, keras.layers.Normalization):
            new.set_weights(weights)
    return found


def _is_grouped(layer):
    return type(layer) is keras.layers.Conv2D and layer.groups > 1


def _gelu(x):
    return x * (0.5 + 0.5 * keras.ops.erf(x * 0.5**0.5))


def _replaced(layer):
    if isinstance(layer, keras.layers.Normalization):
        inverse = 1 / np.sqrt(np.ravel(layer.variance))
        return keras.layers.Rescaling(
            inverse.tolist(),
            (-np.ravel(layer.mean) * inverse).tolist(),
            name=layer.name,
        )
    if _is_grouped(layer):
        return keras.layers.DepthwiseConv2D(
            layer.kernel_size,
            layer.strides,
            layer.padding,
            use_bias=layer.use_bias,
            name=layer.name,
        )
    if getattr(layer, "activation", None) is keras.activations.gelu:
        return keras.layers.Activation(_gelu, name=layer.name)
    return layer.__class__.from_config(layer.get_config())
