"""Rules know where they do not hold, and what was asked for of a layer."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_regions import branches
from test_regions import chain
from test_regions import compare
from test_regions import conv
from test_regions import learn
from test_regions import rule_of

import tf_convpar as convpar
from tf_convpar.placement import Layout
from tf_convpar.sharding.rules import rule_for

L = keras.layers
LAST = Layout(
    owner="CPU:0", devices=("CPU:0", "CPU:1", "CPU:2"), sizes=(6, 4, 2)
)
FIRST = dataclasses.replace(LAST, axis=-3)
# After Flatten: channels of 64 pixels, one pixel after another.
FLAT = dataclasses.replace(LAST, blocks=64)
OTHER = dataclasses.replace(LAST, sizes=(4, 4, 4))
IMAGE, ROW = (2, 8, 8, 12), (2, 768)


def with_lora():
    layer = L.Dense(2, lora_rank=1)
    layer.build(ROW)
    return layer


# A layer, how its inputs lie, and the shape of the first.
REFUSED = {
    "pooling along channels": (L.MaxPooling2D(), [FIRST], (2, 12, 8, 8)),
    "means along channels": (
        L.GlobalAveragePooling2D(),
        [FIRST],
        (2, 12, 8, 8),
    ),
    "dropout along channels": (L.SpatialDropout2D(0.5), [FIRST], (2, 12, 8, 8)),
    "dropout of a row": (L.Dropout(0.5), [FLAT], ROW),
    "offsets of channels": (
        L.Rescaling(2.0, np.arange(12.0)),
        [LAST],
        IMAGE,
    ),
    "slopes of rows": (L.PReLU(), [FIRST], (2, 12, 8, 8)),
    "sum of unequal layouts": (L.Add(), [LAST, OTHER], IMAGE),
    "sum of three": (L.Add(), [LAST, LAST, OTHER], IMAGE),
    "rows in a row": (L.Concatenate(), [FLAT, FLAT], ROW),
    "flat already": (L.Flatten(), [FLAT], ROW),
    "flat in another order": (
        L.Flatten(data_format="channels_first"),
        [LAST],
        IMAGE,
    ),
    "flat, channels first": (L.Flatten(), [FIRST], (2, 12, 8, 8)),
    "flat, of unknown size": (L.Flatten(), [LAST], (2, None, 8, 12)),
    "reshape to a row": (L.Reshape((-1,)), [LAST], IMAGE),
    "reshape to a pixel": (L.Reshape((1, 1, -1)), [LAST], IMAGE),
    "reshape to pixels": (L.Reshape((4, 3)), [LAST], (2, 12)),
    "dense, of pixels": (L.Dense(1), [LAST], IMAGE),
    "dense, with LoRA": (with_lora(), [FLAT], ROW),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rules_that_do_not_hold(case):
    layer, layouts, shape = REFUSED[case]
    assert rule_for(layer).output(layer, layouts, shape) is None


def test_a_subclass_has_no_rule():
    class Reversed(L.ReLU):
        pass

    assert rule_for(L.ReLU()) is not None
    assert rule_for(Reversed()) is None


@pytest.mark.parametrize("shape", [(-1,), (64, -1), (8, 8, 12)])
def test_reshape_of_many_pixels(shape, strategy):
    parallel = compare(chain(L.Reshape(shape), L.Reshape((8, 8, 12))), strategy)
    assert rule_of(parallel.layers[1]) is None


def test_sums_of_layers_cut_unlike(strategy):
    plan = {"conv2d": (1, 2, 1), "conv2d_1": (2, 1, 1)}
    parallel = compare(branches(L.Add()), strategy, plan=plan)
    layer = next(x for x in parallel.layers if isinstance(x, L.Add))
    assert rule_of(layer) is None


def test_one_normalization_of_layers_cut_unlike(strategy):
    """It expects shards of the first; those of the second are joined."""
    x = keras.Input((8, 8, 3))
    shared = L.BatchNormalization()
    y = L.Add()([shared(conv(name="a")(x)), shared(conv(name="b")(x))])
    compare(
        keras.Model(x, conv(6)(y)),
        strategy,
        plan={"a": (1, 2, 1), "b": (2, 1, 1)},
    )


def test_a_frozen_normalization_does_not_learn(strategy):
    parallel = compare(chain(L.BatchNormalization(trainable=False)), strategy)
    np.testing.assert_array_equal(parallel.layers[1].moving_mean, np.zeros(12))


def test_a_convolution_that_mixes_channels_is_joined(strategy):
    parallel = compare(chain(conv(activation="softmax")), strategy)
    assert parallel.layers[1].is_sharded
    assert not parallel.layers[1]._in_region


def test_one_filter_after_shards(strategy):
    """A separable layer whose kernels all are the chief's."""
    parallel = compare(chain(L.SeparableConv2D(1, 3)), strategy)
    assert not parallel.layers[1].is_sharded


def test_channels_first_in_the_middle(strategy):
    def network(data_format):
        first = data_format == "channels_first"
        form = {"data_format": data_format}
        return keras.Sequential(
            [
                keras.Input((3, 8, 8) if first else (8, 8, 3)),
                conv(**form),
                L.SpatialDropout2D(0.4, seed=3, **form),
                L.DepthwiseConv2D(3, depth_multiplier=2, **form),
                L.SeparableConv2D(5, 3, **form),
                L.GlobalMaxPooling2D(keepdims=True, **form),
            ]
        )

    with strategy.scope():
        parallel = convpar.parallelize(
            network("channels_first"), plan={"conv2d": (6, 4, 2)}
        )
    depthwise, separable = parallel.layers[2:4]
    assert depthwise._layout.sizes == (6, 4, 2)
    assert separable._depthwise_layout.sizes == (12, 8, 4)
    plain = network("channels_last")
    plain.set_weights(parallel.get_weights())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    y = rng.normal(size=(4, 1, 1, 5)).astype("float32")
    ours = learn(parallel, np.moveaxis(x, -1, 1), np.moveaxis(y, -1, 1))
    theirs = learn(plain, x, y)
    ours[1] = np.moveaxis(ours[1], 1, -1)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ({"depthwise_conv2d": "bfloat16"}, [None, "bfloat16", None]),
        ({"conv2d": "bfloat16"}, ["bfloat16", None, None]),
        ("float16", ["float16"] * 3),
    ],
)
def test_wires_are_those_of_each_layer(wire, expected, strategy):
    with strategy.scope():
        parallel = convpar.parallelize(
            chain(L.DepthwiseConv2D(3)), wire_dtype=wire
        )
    assert [layer._layout.wire for layer in parallel.layers] == expected


@pytest.mark.parametrize("own", [None, "float16"])
def test_the_strategys_wire_is_for_layers_without(own):
    strategy = convpar.ConvParallelStrategy(
        devices=["CPU:0", "CPU:1"], wire_dtype="bfloat16"
    )
    with strategy.scope():
        parallel = convpar.parallelize(
            chain(L.DepthwiseConv2D(3)), wire_dtype=own
        )
    wires = {layer._layout.wire for layer in parallel.layers}
    assert wires == {own or "bfloat16"}


def test_weights_do_not_travel_narrow(strategy):
    """Where they are merged, as for a checkpoint, they keep every digit."""
    model = chain(
        L.BatchNormalization(),
        L.PReLU(shared_axes=[1, 2]),
        L.DepthwiseConv2D(3),
        L.SeparableConv2D(12, 3),
        L.Conv2DTranspose(12, 3),
    )
    model.add(L.GlobalMaxPooling2D())
    model.add(L.Dense(1))
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.uniform(1, 2, variable.shape))
    with strategy.scope():
        parallel = convpar.parallelize(model, wire_dtype="bfloat16")
    for ours, theirs in zip(parallel.variables, model.variables, strict=True):
        assert hasattr(ours._value, "shards") or "bias" in ours.path
        np.testing.assert_array_equal(tf.convert_to_tensor(ours), theirs)


def test_slopes_and_dense_layers_in_mixed_precision(strategy):
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            conv(),
            L.PReLU("random_uniform"),
            L.GlobalAveragePooling2D(),
            L.Dropout(0.5, seed=3),
            L.Dense(2, bias_initializer="random_uniform"),
        ]
    )
    with strategy.scope():
        parallel = convpar.parallelize(model)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    ours, theirs = parallel(x, training=True), model(x, training=True)
    assert ours.dtype == theirs.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(ours, "float32"), tf.cast(theirs, "float32"), atol=0.05
    )


def test_lora_of_a_dense_layer_that_is_cut(strategy):
    """Enabled when its rows are placed already."""
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), conv(), L.Flatten(), L.Dense(3)]
    )
    with strategy.scope():
        parallel = convpar.parallelize(model)
    assert rule_of(parallel.layers[-1]) is not None
    for other in (model, parallel):
        keras.utils.set_random_seed(2)
        other.layers[-1].enable_lora(2)
        added = other.layers[-1].lora_kernel_b
        added.assign(np.ones(added.shape))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    np.testing.assert_allclose(parallel(x), model(x), rtol=1e-4, atol=1e-5)
