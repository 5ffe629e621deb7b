"""Second derivatives through functions that were traced without a tape.

Their first derivatives are ops of this package, in a graph that another tape
differentiates again.
"""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import curvature
from by_samples import numbers
from by_samples import shaken
from cases import by_turns

import tf_convpar as convpar
from tf_convpar import ops
from tf_convpar._compat.tensorflow import gradient_registry

L = keras.layers

# What is between numbers and bytes, or tasks, or no number of a loss; and what
# `_passes` hides from tapes.
WITHOUT = {
    "BilinearForward",
    "BilinearKernelGradient",
    "DecodeBlocks",
    "EncodeBlocks",
    "InstructionSet",
    "Pack",
    "PeersConnect",
    "PeersListen",
    "ReleaseFunctions",
    "Unchanged",
    "Unpack",
    "WorkspaceBytes",
}


@pytest.mark.skipif(not ops.load(), reason="this is about the compiled ops")
def test_ops_have_gradients():
    begin = "TfConvpar_"
    names = {
        name.removeprefix(begin)
        for name in dir(ops.module())
        if name.startswith(begin)
    }
    known = set(gradient_registry.list())
    assert {n for n in names if f"TfConvpar>{n}" not in known} == WITHOUT


def normalized(layer, x, groups, axes):
    """As Keras has it, with second derivatives.

    Those of `tf.nn.moments` are wrong: it stops the gradient of the mean.
    """
    grouped = tf.reshape(x, [*x.shape[:-1], groups, x.shape[-1] // groups])
    mean = tf.reduce_mean(grouped, axes, keepdims=True)
    variance = tf.reduce_mean((grouped - mean) ** 2, axes, keepdims=True)
    y = (grouped - mean) * tf.math.rsqrt(variance + layer.epsilon)
    return tf.reshape(y, x.shape) * layer.gamma.value + layer.beta.value


class Batch(L.BatchNormalization):
    def call(self, x, **kwargs):
        return normalized(self, x, x.shape[-1], (0, 1, 2, 4))


class Pixels(L.LayerNormalization):
    def call(self, x):
        return normalized(self, x, 1, (4,))


class Groups(L.GroupNormalization):
    def call(self, x):
        return normalized(self, x, self.groups, (1, 2, 4))


def of_two(of):
    x = keras.Input((6, 6, 6))
    y = L.Add()([of.Batch()(x), of.Batch()(L.Activation("tanh")(x))])
    return keras.Model(x, L.ReLU()(y))


OWN = types.SimpleNamespace(Batch=Batch, Pixels=Pixels, Groups=Groups)
KERAS = types.SimpleNamespace(
    Batch=L.BatchNormalization,
    Pixels=L.LayerNormalization,
    Groups=L.GroupNormalization,
)
KINDS = {
    "batch": lambda of: [of.Batch(), L.Activation("silu")],
    "sum": lambda of: [of_two(of)],
    "pixels": lambda of: [of.Pixels()],
    "groups": lambda of: [of.Groups(3), L.Activation("gelu")],
    "depthwise": lambda of: [L.DepthwiseConv2D(5, activation="relu6")],
    "pooling": lambda of: [L.MaxPooling2D(2), L.AveragePooling2D(2)],
    "dense": lambda of: [L.Dense(5, activation="gelu")],
    "convolution": lambda of: [L.Conv2D(4, 3, activation="relu")],
}


def model(kind, of):
    layers = [L.Conv2D(6, 1, use_bias=False), *KINDS[kind](of), L.Conv2D(2, 1)]
    # Normalizations here go by the size of a batch.
    return keras.Sequential([keras.Input((6, 6, 3), batch_size=4), *layers])


@pytest.mark.parametrize(
    ("kind", "traced"), by_turns([*KINDS], ["slope", "model"])
)
def test_second_derivatives(kind, traced):
    x = tf.constant(numbers((4, 6, 6, 3)))
    keras.config.set_dtype_policy("float64")
    plain = shaken(model(kind, OWN))
    keras.config.set_dtype_policy("float32")
    expected = curvature(plain, x)
    algorithm = "gemm" if kind == "convolution" else "auto"
    fused = convpar.parallelize(model(kind, KERAS), algorithm=algorithm)
    for ours, theirs in zip(
        fused.trainable_variables, plain.trainable_variables, strict=True
    ):
        ours.assign(theirs.numpy())
    found = curvature(fused, tf.cast(x, tf.float32), traced)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
