"""Dense layers with many weights, split by their units."""

import keras
import numpy as np
import pytest
from keras import layers as L
from plans_of_graphs import calibration_of

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar.planner import by_samples
from tf_convpar.planner.call_ways import Settings
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import calls_of
from tf_convpar.sharding import relayout

FIRST = {"conv": "chief", "first": (2, 1, 1), "second": "chief"}


def network():
    """Two dense layers with over a million weights, and one with few."""
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            L.Conv2D(8, 3, activation="relu", name="conv"),
            L.Flatten(),
            L.Dense(1024, activation="relu", name="first"),
            L.Dropout(0.3, seed=1),
            L.Dense(1100, activation="softmax", use_bias=False, name="second"),
            L.Dense(5, activation="softmax", name="small"),
        ]
    )


def images(count=6):
    dice = np.random.default_rng(0)
    return dice.normal(size=(count, 16, 16, 3)), dice.integers(5, size=count)


def compiled(strategy, plan, optimizer="adam"):
    """A model and its parallel form, of the same weights."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        plain = network()
        plain.compile(optimizer, "sparse_categorical_crossentropy")
        return plain, convpar.parallelize(plain, plan)


def units(model):
    """Units of each device, of the layers that are split."""
    return {
        layer.name: layer._layout.sizes
        for layer in model.layers
        if isinstance(layer, convpar.DenseParallel) and layer.is_spread
    }


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # Feature maps in shards of channels, flattened: by pixels, then maps.
        ("equal", {"first": (342, 341, 341), "second": (367, 367, 366)}),
        (
            {"conv": "samples", "first": (3, 2, 1), "second": (0, 1, 1)},
            {"first": (512, 341, 171), "second": (550, 550)},
        ),
        # What a plan does not name stays whole.
        ({"conv": (1, 1, 1)}, {}),
        # Weights do not travel: of samples each device would need all of them.
        ({".*": "samples"}, {}),
        ({"conv": (1, 1, 1), "(first|second)": "chief"}, {}),
    ],
)
def test_a_split_changes_no_result(strategy, float64, plan, expected):
    plain, model = compiled(strategy, plan)
    assert units(model) == expected
    assert type(model.get_layer("small")) is L.Dense
    x, y = images()
    np.testing.assert_allclose(model.predict(x), plain.predict(x), atol=1e-14)
    for _ in range(3):
        loss = model.train_on_batch(x, y)
        assert loss == pytest.approx(plain.train_on_batch(x, y), rel=1e-12)
    whole = convpar.merge(model)
    assert type(whole.get_layer("first")) is L.Dense
    for a, b in zip(whole.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_weights_and_slots_lie_where_they_are_used(strategy):
    _, model = compiled(strategy, FIRST)
    model.train_on_batch(*images())
    layer = model.get_layer("first")
    devices = [
        shard.device.split(":")[-1]
        for weight in (layer.kernel, *model.optimizer.variables)
        if tuple(weight.shape) == (1568, 1024)
        for shard in weight.value.shards
    ]
    assert devices == ["0", "1", "2"] * 3  # The kernel, and Adam's two slots.
    assert repr(layer).startswith("<DenseParallel name=first, shards=(512,")


def test_one_device_computes_what_it_did():
    model = convpar.parallelize(network(), algorithm="auto")
    assert not any(isinstance(x, convpar.DenseParallel) for x in model.layers)


def test_a_layer_by_itself(strategy, tmp_path):
    x = np.random.default_rng(1).normal(size=(4, 30)).astype("float32")
    keras.utils.set_random_seed(2)
    plain = L.Dense(7, activation="relu")
    expected = plain(x)
    keras.utils.set_random_seed(2)
    with strategy.scope():
        layer = convpar.DenseParallel(7, activation="relu", shards=(4, 0, 3))
        model = keras.Sequential([keras.Input((30,)), layer])
    assert layer.is_spread
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6, atol=1e-6)
    # Files of either load into the other.
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[-1]._layout.sizes == (4, 3)
    model.save_weights(tmp_path / "model.weights.h5")
    whole = keras.Sequential([keras.Input((30,)), L.Dense(7, "relu")])
    whole.load_weights(tmp_path / "model.weights.h5")
    for read in (again, whole):
        np.testing.assert_allclose(read(x), expected, rtol=1e-6, atol=1e-6)


def test_a_device_is_lost(strategy, float64):
    plain, model = compiled(strategy, FIRST)
    x, y = images()
    for one in (plain, model):
        one.train_on_batch(x, y)
    how, whole = HowSplit.of(model, strategy.devices), convpar.merge(model)
    strategy.change_devices(strategy.devices[:2])
    relayout(model, whole, how, strategy)
    assert units(model) == {"first": (683, 341)}
    loss = model.train_on_batch(x, y)
    assert loss == pytest.approx(plain.train_on_batch(x, y), rel=1e-12)


def test_what_travels(strategy):
    """Features to the other devices, and their units' results back."""
    _, model = compiled(strategy, FIRST)
    traffic = convpar.step_traffic(model, 10)
    for device, share in zip(strategy.devices[1:], (256, 256), strict=True):
        chief = strategy.devices[0]
        # In float32; each has its gradient, which goes the other way.
        numbers = 10 * (1568 + share)
        assert traffic.links[chief, device] == 4 * numbers
        assert traffic.links[device, chief] == 4 * numbers


def test_the_planner_splits_what_pays(strategy):
    devices = list(strategy.devices)
    with strategy.scope():
        model = network()
    assert [c.name for c in calls_of(model).convolutions] == [
        *("conv", "first", "second"),
    ]
    # Links by which anything pays, and such that nothing does.
    fast = calibration_of(model, devices, 8, rate=1e12)
    plan = planner.plan(model, fast)
    assert plan.splits["first"] == plan.splits["second"] == "filters"
    assert sum(n > 0 for n in plan["first"]) == 3
    assert plan.reason.startswith("1 convolutions and 2 dense layers over 3 ")
    slow = calibration_of(model, devices, 8, rate=1e3)
    assert planner.plan(model, slow)["first"] == (1024, 0, 0)
    # A plan by samples leaves weights where they are.
    split = by_samples(model, fast, Settings())
    assert (split.way("conv"), split.way("first")) == ("samples", "filters")
    with strategy.scope():
        parallel = convpar.parallelize(model, plan)
    assert units(parallel)["first"] == tuple(plan["first"])


def test_it_is_told(strategy, capsys):
    compiled(strategy, "equal")
    said = capsys.readouterr().out
    assert "1 of 1 convolutions and 2 dense layers on 3 devices." in said
