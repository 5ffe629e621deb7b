"""What a device runs of its samples is what one device runs of a batch."""

import collections

import keras
import numpy as np
import pytest
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from cases import by_turns
from graphs_that_ran import nodes_by_device

import tf_convpar as convpar

L = keras.layers
# Samples of each of three devices, and of the one device.
EACH = 4
# Ops that bring tensors to devices, cut, join and add them.
TRAVEL = {
    *("_Send", "_Recv", "Identity", "IdentityN", "AddN", "Const", "NoOp"),
    *("Split", "SplitV", "ConcatV2", "ReadVariableOp", "_Arg"),
    *("TfConvpar>ToPieces", "TfConvpar>FromPieces"),
    *("TfConvpar>SplitShards", "TfConvpar>ConcatShards"),
    "TfConvpar>MergedMoments",
}


def block(x, filters, normalize, activation):
    """Convolutions with biases, normalized, and a sum."""
    y = L.Conv2D(filters, 3, padding="same")(x)
    y = L.Activation(activation)(normalize()(y))
    y = normalize()(L.Conv2D(filters, 3, padding="same")(y))
    return L.Activation("relu")(L.Add()([y, L.Conv2D(filters, 1)(x)]))


def batch_normalized(x):
    return block(x, 8, L.BatchNormalization, "relu")


def separable(x):
    """As MobileNetV2 and Xception: depthwise, normalized, with a sum."""
    y = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    y = L.ReLU(6)(L.BatchNormalization()(y))
    y = L.Conv2D(4, 1, use_bias=False)(y)
    y = L.Add()([x, L.BatchNormalization()(y)])
    return L.BatchNormalization()(L.SeparableConv2D(6, 3)(y))


def group_normalized(x):
    return block(x, 8, lambda: L.GroupNormalization(2), "silu")


def plain(x):
    """As VGG: convolutions with an activation, and maxima."""
    for filters in (8, 16):
        x = L.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = L.MaxPooling2D(2)(x)
    return x


def pixel_normalized(x):
    """As ConvNeXt: layer normalization and products of single pixels."""
    y = L.DepthwiseConv2D(3, padding="same")(x)
    y = L.Dense(16, activation="gelu")(L.LayerNormalization()(y))
    return L.Add()([x, L.Dense(4)(L.Activation("gelu")(y))])


def scaled(x):
    """As EfficientNet: images are rescaled first."""
    mean, variance = [0.1] * 4, [2.0] * 4
    x = L.Normalization(mean=mean, variance=variance)(L.Rescaling(0.5)(x))
    return L.Activation("silu")(L.Conv2D(8, 3)(x))


def network(body):
    inputs = keras.Input((12, 12, 4))
    x = L.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    if body is scaled:
        x = inputs
    x = L.GlobalAveragePooling2D()(body(x))
    return keras.Model(inputs, L.Dense(3)(x))


def kinds_of(model, samples, learns=True):
    """How many ops of each kind a step has on each device."""
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    x, y = numbers((samples, 12, 12, 4)), numbers((samples, 3))
    if learns:
        run = nodes_by_device(lambda: model.fit(x, y, samples, verbose=0))
    else:
        run = nodes_by_device(lambda: model.predict(x, samples, verbose=0))
    return [
        collections.Counter(node.op for node in nodes if node.op not in TRAVEL)
        for _, nodes in sorted(run.items())
    ]


@pytest.mark.parametrize(
    ("body", "moments"),
    [
        (batch_normalized, "all"),
        (batch_normalized, "own"),
        (group_normalized, "all"),
        (plain, "all"),
        (pixel_normalized, "all"),
        (scaled, "all"),
    ],
)
def test_shards_run_what_one_device_runs(body, moments, strategy):
    model = network(body)
    (one,) = kinds_of(convpar.parallelize(model, algorithm="auto"), EACH)
    how = {"algorithm": "auto", "moments": moments}
    parallel = split(model, strategy, {".*": "samples"}, **how)
    chief, *others = kinds_of(parallel, 3 * EACH)
    assert len([kind for kind in one if kind.startswith("TfConvpar>")]) > 1
    assert chief == one
    # The end of the network and its loss are the chief's, of all samples.
    for kinds in others:
        assert not kinds - one


@pytest.mark.parametrize(
    ("body", "plan", "convolutions", "passes"),
    [
        (batch_normalized, "samples", 4, 0),
        (batch_normalized, "filters", 4, 0),
        (separable, "samples", 5, 0),
        # The maps of a separable layer by filters are gathered between stages.
        (separable, "filters", 5, 1),
    ],
)
def test_inference_normalizes_within_convolutions(
    body, plan, convolutions, passes, strategy
):
    model = network(body)
    parallel = split(model, strategy, {".*": plan}, algorithm="auto")
    for kinds in kinds_of(parallel, 3 * EACH, learns=False):
        convolves = ("TfConvpar>Convolution", "TfConvpar>Depthwise")
        assert sum(kinds[kind] for kind in convolves) == convolutions
        assert kinds["TfConvpar>ScaleChannels"] == passes
        assert not {"Relu", "Relu6", "FusedBatchNormV3"} & set(kinds)


@pytest.mark.parametrize(
    ("body", "plan"),
    by_turns(
        [
            batch_normalized,
            group_normalized,
            plain,
            pixel_normalized,
            separable,
        ],
        ["samples", "filters"],
    ),
)
def test_ops_on_shards_change_no_result(body, plan, strategy):
    model = shaken(network(body))
    parallel = split(model, strategy, {".*": plan}, algorithm="auto")
    x = numbers((7, 12, 12, 4)).astype("float32")
    same(slopes(parallel, x), slopes(model, x), 1e-4)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(
        parallel.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("plan", ["samples", "filters"])
def test_a_frozen_normalization_learns_nothing(plan, strategy):
    """It takes the moving statistics in training too, as fine-tuning does."""
    model = shaken(network(batch_normalized))
    for layer in model.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.trainable = False
            layer.moving_mean.assign(numbers(layer.moving_mean.shape))
    parallel = split(model, strategy, {".*": plan})
    x = numbers((7, 12, 12, 4)).astype("float32")
    same(slopes(parallel, x), slopes(model, x), 1e-4)
    for old, new in zip(model.weights, parallel.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(new), np.asarray(old))
