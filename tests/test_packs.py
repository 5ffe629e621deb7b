"""Weights that travel together: how many messages, and whose values."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from by_samples import numbers
from by_samples import same
from by_samples import shaken
from by_samples import slopes
from by_samples import split
from cases import slow
from graphs_that_ran import nodes_by_device

import tf_convpar as convpar
from tf_convpar.sharding import step_traffic

L = keras.layers
BLOCKS = 6


def deep(blocks=3):
    """Convolutions of 9 kB, each with a normalization."""
    layers = [keras.Input((8, 8, 16))]
    for _ in range(blocks):
        layers += [
            L.Conv2D(16, 3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(),
        ]
    return keras.Sequential([*layers, L.GlobalAveragePooling2D(), L.Dense(3)])


def graphs(model):
    """What each device runs in a training step: nodes, by device."""
    model.compile(keras.optimizers.SGD(0.01, 0.9), "mse", jit_compile=False)
    x, y = numbers((7, 8, 8, 16)), numbers((7, 3))
    return nodes_by_device(lambda: model.fit(x, y, batch_size=7, verbose=0))


def counted(model):
    """Of each device, how many ops of a kind a training step has there."""
    return {
        device: collections.Counter(node.op for node in nodes)
        for device, nodes in graphs(model).items()
    }


# Beside what is counted: the learning rate, say, and waits for other devices.
OTHER_MESSAGES = 6


@pytest.mark.parametrize(
    ("plan", "moments"),
    [
        ({".*": "samples"}, "all"),
        ({".*": "samples"}, "own"),
        ({".*": {"split": "samples", "shards": (0, 1, 3)}}, "all"),
        slow(("equal", "all")),
        slow(({"conv2d_[13]": "samples", "conv2d(|_[245])": (7, 4, 5)}, "all")),
    ],
)
def test_messages_are_those_that_are_sent(plan, moments, strategy):
    parallel = split(deep(BLOCKS), strategy, plan, moments=moments)
    sent = collections.Counter(
        (device, node.attr["recv_device"].s.decode())
        for device, nodes in graphs(parallel).items()
        for node in nodes
        if node.op == "_Send"
    )
    expected = step_traffic(parallel, 7).messages
    for pair in {*sent, *expected}:
        count = expected.get(pair, 0)
        assert count <= sent[pair] <= count + OTHER_MESSAGES, pair


def test_messages_and_ops_of_a_step(strategy):
    model = deep(BLOCKS)
    (one,) = counted(deep(BLOCKS)).values()
    parallel = split(model, strategy, {".*": "samples"})
    held = sum(
        v.value.dtype.size * v.value.shape.num_elements()
        for v in model.trainable_variables
    )
    for kinds in counted(parallel).values():
        # A row of each normalization there and back to two other devices, and
        # packs of what is there and of gradients.
        most = 2 * (2 * BLOCKS + held / 100e3) + 20
        assert kinds["_Send"] <= most
        assert kinds["TfConvpar>Affine"] == BLOCKS
        assert kinds.total() <= 1.3 * one.total()
        # All weights of a pack are one op on each device, both ways.
        assert kinds["TfConvpar>ToPieces"] == kinds["TfConvpar>FromPieces"]
        assert not kinds["Slice"] + kinds["TfConvpar>ConcatShards"]


@pytest.mark.slow  # test_messages_and_ops_of_a_step has a small one.
@pytest.mark.parametrize(
    "name", ["ResNet50", "MobileNetV2", "DenseNet121", "EfficientNetB0"]
)
def test_ops_of_a_whole_model(name, strategy):
    application = getattr(keras.applications, name)
    model = application(weights=None, input_shape=(64, 64, 3), classes=5)
    one = convpar.parallelize(model, algorithm="auto")
    how = {"split": "samples", "shards": (1, 1, 0)}
    parallel = split(
        model, strategy, {".*": how}, algorithm="auto", moments="own"
    )
    assert most_ops(parallel, 8) <= 1.3 * most_ops(one, 4)


def most_ops(model, samples):
    """Ops of a training step on the device that has most."""
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = numbers((samples, 64, 64, 3)), np.zeros(samples)
    nodes = nodes_by_device(lambda: model.fit(x, y, samples, verbose=0))
    return max(map(len, nodes.values()))


def wide(filters):
    return keras.Sequential(
        [
            keras.Input((8, 8, 16)),
            L.Conv2D(filters, 5, use_bias=False),
            L.GlobalAveragePooling2D(),
            L.Dense(3),
        ]
    )


def test_a_large_kernel_comes_in_pieces(strategy):
    """What everybody waits for may be behind a message, which is short."""
    sent = []
    for filters in (90, 3600):
        parallel = split(wide(filters), strategy, {".*": "samples"})
        sent.append([k["_Send"] for k in counted(parallel).values()])
    # 5.76 MB in three pieces: of each third of it, to two others and back.
    assert [b - a for a, b in zip(*sent, strict=True)] == [8, 8, 8]


@pytest.mark.parametrize("shards", [(1, 1, 1), (3, 0, 2)])
def test_pieces_are_put_together(shards, strategy, float64):
    model = shaken(wide(701))
    parallel = split(
        model, strategy, {".*": {"split": "samples", "shards": shards}}
    )
    x = numbers((5, 8, 8, 16))
    same(slopes(parallel, x), slopes(model, x), 1e-9)


@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_values_of_now(wire, strategy, float64):
    """A second call in one function has what was assigned after the first."""
    model = shaken(deep())
    parallel = split(
        model,
        strategy,
        {".*": {"split": "samples", "shards": (2, 1, 3)}},
        wire_dtype=wire,
    )

    def twice(model):
        @tf.function
        def run(x):
            first = model(x)
            for variable in model.trainable_variables:
                variable.assign(variable * 0.5)
            with tf.GradientTape() as tape:
                second = model(x)
                loss = tf.reduce_sum(second**2)
            grads = tape.gradient(loss, model.trainable_variables)
            return first, second, [tf.convert_to_tensor(g) for g in grads]

        return [
            np.asarray(y) for y in tf.nest.flatten(run(numbers((4, 8, 8, 16))))
        ]

    same(twice(parallel), twice(model), 1e-10 if wire is None else 0.1)


def test_frozen_weights_and_parts_of_a_model(strategy, float64):
    model = shaken(deep())
    model.layers[0].trainable = model.layers[4].trainable = False
    parallel = split(model, strategy, {".*": "samples"})
    x = numbers((5, 8, 8, 16))
    same(slopes(parallel, x), slopes(model, x), 1e-9)
    ends = [
        keras.Model(m.inputs, m.layers[5].output) for m in (parallel, model)
    ]
    same(slopes(ends[0], x), slopes(ends[1], x), 1e-9)


def test_what_lies_where_it_is_needed_is_not_packed(strategy):
    """All samples are on one device, and so are all weights."""
    layers = [L.Conv2D(3, 3) for _ in range(3)]
    model = keras.Sequential(
        [keras.Input((8, 8, 16)), *layers, L.GlobalAveragePooling2D()]
    )
    plan = {".*": {"split": "samples", "shards": (0, 0, 1)}}
    kinds = sum(
        counted(split(model, strategy, plan)).values(), collections.Counter()
    )
    assert not kinds["TfConvpar>ToPieces"] + kinds["TfConvpar>FromPieces"]


def test_normalization_by_filters_sends_nothing(strategy):
    """What is computed of its maps is computed where they are."""
    sent = []
    for kind in (L.ReLU, L.BatchNormalization):
        model = keras.Sequential(
            [
                keras.Input((8, 8, 16)),
                L.Conv2D(6, 3, use_bias=False),
                kind(),
                L.Conv2D(6, 3, use_bias=False),
                L.GlobalAveragePooling2D(),
                L.Dense(3),
            ]
        )
        found = counted(split(model, strategy, {".*": "filters"})).values()
        sent.append([kinds["_Send"] for kinds in found])
    assert sent[0] == sent[1]
