"""What comes before the first convolution goes with its samples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.sharding import leading

L = keras.layers


def conv():
    return L.Conv2D(4, 3, name="conv")


def names(model):
    """Of the layers that lead to a convolution."""
    found = leading(model)
    nodes = [n for layer in model.layers for n in layer._inbound_nodes]
    return {n.operation.name for n in nodes if id(n) in found}


def preprocessing(*layers):
    x = y = keras.Input((8, 8, 3))
    for layer in layers:
        y = layer(y)
    return keras.Model(x, conv()(y))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], set()),
        ([L.Rescaling(0.5, name="a")], {"a"}),
        ([L.Rescaling(0.5, name="a"), L.ZeroPadding2D(name="b")], {"a", "b"}),
        # It draws for all samples, on the chief.
        ([L.RandomFlip(name="a"), L.Rescaling(0.5, name="b")], set()),
        # What is left of the images is less to send.
        ([L.CenterCrop(4, 4, name="a"), L.ReLU(name="b")], set()),
        ([L.Rescaling(0.5, name="a"), L.MaxPooling2D(name="b")], set()),
    ],
)
def test_per_sample_layers_at_the_inputs_lead(layers, expected):
    assert names(preprocessing(*layers)) == expected


def test_what_others_need_too_does_not_lead():
    x = keras.Input((8, 8, 3))
    y = L.Rescaling(0.5)(x)
    pooled = L.GlobalAveragePooling2D()(y)
    assert names(keras.Model(x, [conv()(y), pooled])) == set()
    assert names(keras.Model(x, [conv()(y), y])) == set()


def test_maps_of_another_convolution_do_not():
    x = keras.Input((8, 8, 3))
    y = L.ReLU(name="relu")(L.Conv2D(4, 3, name="first")(x))
    assert names(keras.Model(x, conv()(y))) == set()


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    model = preprocessing(
        L.Rescaling(1 / 255, name="rescaling"),
        L.Normalization(mean=0.5, variance=2.0, name="normalization"),
    )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("batch", [None, 6])
def test_each_device_prepares_its_own_images(model, batch, strategy):
    with strategy.scope():
        split = convpar.parallelize(
            model, {"conv": {"split": "samples", "shards": (3, 1, 2)}}
        )
    function = tf.function(lambda x: split(x, training=True))
    spec = tf.TensorSpec((batch, 8, 8, 3))
    graph = function.get_concrete_function(spec).graph
    devices = {
        op.device
        for op in graph.get_operations()
        if "rescaling" in op.name and op.type in ("Mul", "AddV2")
    }
    assert devices == set(strategy.devices)
    x = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3))
    x = x.astype("float32")
    np.testing.assert_allclose(split(x), model(x), rtol=1e-4, atol=1e-6)


def test_by_filters_the_chief_prepares_them(model, strategy):
    with strategy.scope():
        split = convpar.parallelize(model, {"conv": (2, 1, 1)})
    assert "call" not in vars(split.get_layer("rescaling"))


def test_it_trains_as_on_one_device(model, strategy):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (10, 8, 8, 3)).astype("float32")
    y = rng.normal(size=(10, 6, 6, 4)).astype("float32")
    with strategy.scope():
        split = convpar.parallelize(model, {"conv": "samples"})
        split.compile("sgd", "mse")
    losses = [
        m.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        for m in (model, split)
    ]
    np.testing.assert_allclose(losses[0]["loss"], losses[1]["loss"], rtol=1e-5)


def test_merged_layers_run_where_they_are_called(model, strategy):
    with strategy.scope():
        split = convpar.parallelize(model, {"conv": "samples"})
    assert "call" in vars(split.get_layer("rescaling"))
    plain = convpar.merge(split)
    for layer in plain.layers:
        assert "call" not in vars(layer), layer.name
    x = np.random.default_rng(0).normal(size=(6, 8, 8, 3)).astype("float32")
    np.testing.assert_array_equal(plain(x), model(x))
