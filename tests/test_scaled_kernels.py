"""Normalizations of inference in kernels, and images prepared as by Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import by_turns
from test_fused import needed
from test_ops_channels import near
from test_ops_channels import numbers

import tf_convpar as convpar
from tf_convpar.sharding import Fused

L = keras.layers


def convolutions_before_normalizations():
    """Five whose kernels may be scaled, and three others."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(2)
    inputs = keras.Input((20, 20, 8))
    x = L.Conv2D(6, 3, use_bias=False, groups=2, name="first")(inputs)
    x = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(x)
    x = L.ReLU()(L.BatchNormalization()(x))
    x = L.ZeroPadding2D(((0, 1), (1, 0)), name="padded")(x)
    x = L.DepthwiseConv2D(3, strides=2, name="strided")(x)
    x = L.ReLU(6.0)(L.BatchNormalization()(x))
    x = L.SeparableConv2D(10, 3, use_bias=False)(x)
    x = L.BatchNormalization(scale=False)(x)
    shortcut = x
    x = L.BatchNormalization(center=False)(L.Conv2D(10, 1)(x))
    x = L.Activation("silu")(L.Add()([x, shortcut]))
    # Not: an activation between; used twice.
    x = L.BatchNormalization()(L.Conv2D(10, 1, activation="tanh")(x))
    twice = L.Conv2D(10, 1)(x)
    x = L.Add()([L.Activation("tanh")(L.BatchNormalization()(twice)), twice])
    x = L.BatchNormalization()(L.Conv2D(40, 7)(x))
    model = keras.Model(inputs, L.GlobalAveragePooling2D()(x))
    rng = np.random.default_rng(3)
    for layer in model.layers:
        for variable in layer.weights:
            if variable.name in ("bias", "beta", "moving_mean"):
                variable.assign(rng.normal(size=variable.shape))
            elif variable.name in ("gamma", "moving_variance"):
                variable.assign(rng.uniform(0.5, 2.0, variable.shape))
    return model


def test_normalizations_of_inference_are_a_part_of_kernels():
    plain = convolutions_before_normalizations()
    fused = convpar.parallelize(plain, algorithm="auto")
    x = numbers((5, 20, 20, 8), 1)
    near(fused.predict(x, verbose=0), plain.predict(x, verbose=0), 1e-5)
    predict = tf.function(
        lambda x: fused(x, training=False), autograph=False
    ).get_concrete_function(tf.TensorSpec((None, 20, 20, 8)))
    kinds = needed(predict.graph)
    # Two or three normalizations, of eight.
    # One has more numbers than maps: the op that scales them by themselves
    # computes it where a race says so.
    assert 2 <= kinds.count("TfConvpar>ScaleChannels") <= 3
    # One with its zeros and its activation, and one of a separable layer.
    assert kinds.count("TfConvpar>Depthwise") == 2
    assert kinds.count("Relu6") == 1
    assert not {"Pad", "PadV2"} & {*kinds}
    near(predict(tf.constant(x)), plain.predict(x, verbose=0), 1e-5)
    # Not one convolution is made twice; that in groups is two.
    assert kinds.count("Conv2D") + kinds.count("TfConvpar>Bilinear") <= 7
    # Outside of graphs nothing would be left out, and in training each is
    # normalized by what it is itself.
    near(fused(x, training=False), plain(x, training=False).numpy(), 1e-5)
    near(fused(x, training=True), plain(x, training=True).numpy(), 1e-4)


@pytest.mark.parametrize(
    ("name", "graph"), by_turns(["first", "padded", "strided"], [False, True])
)
def test_programs_differentiate_by_what_kernels_were_scaled_for(name, graph):
    x = tf.constant(numbers((5, 20, 20, 8), 1))
    found = []
    model = convolutions_before_normalizations()
    for one in (model, convpar.parallelize(model, algorithm="auto")):
        at = one.get_layer(name)
        both = keras.Model(one.inputs, [at.output, one.outputs[0]])
        learns = one.get_layer("strided")

        def slopes(x, both=both, learns=learns):
            with tf.GradientTape() as tape:
                maps, outputs = both(x, training=False)
                score = tf.reduce_sum(outputs[:, 0])
            return tape.gradient(score, [maps, *learns.trainable_variables])

        found.append(tf.function(slopes)(x) if graph else slopes(x))
    for expected, ours in zip(*found, strict=True):
        largest = np.abs(expected).max()
        assert largest > 0
        near(ours / largest, expected / largest, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_images_are_prepared_as_by_keras(dtype):
    """Numbers that are far from nothing lose no more than with Keras."""
    far = L.Normalization()
    images = np.random.default_rng(1).integers(100, 256, (6, 7, 5, 3))
    images = images.astype(dtype)
    far.adapt(images.astype("float32") + 1e4)
    inputs = keras.Input((7, 5, 3), dtype=dtype)
    x = far(L.Rescaling(1.0, offset=1e4)(inputs))
    x = L.Rescaling([0.5, 2.0, 3.0], [1.0, 0.0, -1.0])(x)
    x = L.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 0.0])(x)
    x = L.Normalization(axis=None, mean=0.5, variance=4.0)(x)
    x = L.Normalization(mean=[3.0] * 3, variance=[4.0] * 3, invert=True)(x)
    plain = keras.Model(inputs, L.Conv2D(4, 3)(x))
    fused = convpar.parallelize(plain, algorithm="auto")
    count = sum(isinstance(vars(x).get("call"), Fused) for x in fused.layers)
    assert count == 4
    expected = plain.predict(images, verbose=0)
    largest = np.abs(expected).max()
    near(fused.predict(images, verbose=0) / largest, expected / largest, 1e-6)
    near(fused(images) / largest, expected / largest, 1e-6)
