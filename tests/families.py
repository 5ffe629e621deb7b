"""Every parallel layer beside its Keras twin."""

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar

L = keras.layers
TWINS = {
    convpar.ConvParallel1D: L.Conv1D,
    convpar.ConvParallel2D: L.Conv2D,
    convpar.ConvParallel3D: L.Conv3D,
    convpar.ConvParallel1DTranspose: L.Conv1DTranspose,
    convpar.ConvParallel2DTranspose: L.Conv2DTranspose,
    convpar.ConvParallel3DTranspose: L.Conv3DTranspose,
    convpar.DepthwiseConvParallel1D: L.DepthwiseConv1D,
    convpar.DepthwiseConvParallel2D: L.DepthwiseConv2D,
    convpar.SeparableConvParallel1D: L.SeparableConv1D,
    convpar.SeparableConvParallel2D: L.SeparableConv2D,
}
NAMES = {kind.__name__: kind for kind in TWINS}
# What no number of dimensions changes is tried with two of them.
PLANE = [name for name in NAMES if "2D" in name]


def is_depthwise(kind):
    return "Depthwise" in kind.__name__


def arguments(kind, channels=8, **kwargs):
    """Few filters, and an initializer that gives the bias values."""
    found = {"kernel_size": 3, "bias_initializer": "random_uniform"} | kwargs
    if not is_depthwise(kind):
        found.setdefault("filters", 8)
    return found


def rank(kind):
    return int(next(n for n in "123" if f"{n}D" in kind.__name__))


def inputs(kind, channels=8, size=9, first=False, batch=2, seed=0):
    shape = [batch, *[size + i for i in range(rank(kind))], channels]
    x = np.random.default_rng(seed).normal(size=shape).astype("float32")
    return np.moveaxis(x, -1, 1) if first else x


def pair(kind, x, strategy, **kwargs):
    """The layer and its twin, of the same weights."""
    own = {
        name: kwargs.pop(name)
        for name in ("shards", "wire_dtype", "algorithm", "split")
        if name in kwargs
    }
    keras.utils.set_random_seed(5)
    plain = TWINS[kind](**kwargs)
    plain.build(x.shape)
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layer = kind(**kwargs, **own)
        layer.build(x.shape)
    return layer, plain


def derivatives(layer, x, order=1):
    """Feature maps, and gradients for the input and every weight."""
    x = tf.constant(x)
    with tf.GradientTape(persistent=order > 1) as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            loss = tf.reduce_sum(tf.sin(y)) + sum(layer.losses)
        variables = layer.trainable_variables
        grads = tape.gradient(loss, [x, *variables])
        norm = sum(tf.reduce_sum(tf.sin(g)) for g in grads)
    found = [y, *grads]
    if order > 1:
        found += outer.gradient(norm, [x, *variables])
    return [np.asarray(g) for g in found]


def same(ours, theirs, tolerance=2e-5):
    for a, b in zip(ours, theirs, strict=True):
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
