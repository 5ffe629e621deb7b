"""A model that was planned is planned again, for who is left and how fast.

Devices are CPUs of this process, with measurements that nobody has made: what
is compared is what becomes of them.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from cases import slow
from plans_of_graphs import calibration_of
from plans_of_graphs import residual
from plans_of_graphs import steps_as_predicted

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar.layers import ConvParallel
from tf_convpar.sharding import Fused
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import LayerSplit
from tf_convpar.sharding import relayout

BATCH = 12


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))


def network():
    # Names of layers as before. Not in a scope, which would not end with it.
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = residual()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


@pytest.fixture
def calibration(strategy, monkeypatch):
    found = calibration_of(
        network(),
        strategy.devices,
        batch=BATCH,
        rate=1e10,
        latency=1e-6,
        speeds=(1.0, 0.8, 0.6),
    )
    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate.calibrate",
        lambda *_, **__: found,
    )
    monkeypatch.setattr(
        "tf_convpar.planner.measure._whole_steps._timed", steps_as_predicted
    )
    return found


@pytest.fixture
def model(strategy, calibration):
    plain = network()
    with strategy.scope():
        return convpar.parallelize(plain, plan="auto", batch_size=BATCH)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10 * BATCH, 8, 8, 3)).astype("float32")
    return x, rng.integers(0, 4, len(x))


def split_of(model):
    """How each convolution is cut now, as a plan says it."""
    return {
        layer.name: (layer.split or "filters", tuple(layer.shards or ()))
        for layer in model.layers
        if isinstance(layer, ConvParallel)
    }


def split_by(plan):
    return {
        name: (plan.splits[name], tuple(plan.allocation[name])) for name in plan
    }


@pytest.mark.slow
def test_who_is_left_has_a_plan_of_its_own(strategy, calibration, model):
    x, y = data()
    three = planner.plan(network(), calibration)
    assert split_by(three) == split_of(model)
    every = strategy.devices
    how = HowSplit.last(model, every)
    assert how.planned == set(three)
    expected = network()
    for devices, speeds in (
        ((every[0], every[2]), {}),
        (every, {every[0]: 0.25}),
        (every, {}),
    ):
        plain = convpar.merge(model)
        strategy.change_devices(devices)
        now = dataclasses.replace(how, speeds=speeds)
        relayout(model, plain, now, strategy)
        measured = calibration.among(
            devices, {d: 1 / s for d, s in speeds.items()}
        )
        assert [d.name for d in measured.devices] == list(devices)
        plan = planner.plan(network(), measured)
        assert split_by(plan) == split_of(model)
        # There is none better.
        saves = strategy.planner().saves(
            model, {d: 1 / s for d, s in speeds.items()}
        )
        assert saves == pytest.approx(0.0, abs=1e-9)
        proportional = {
            name: (entry["split"], tuple(entry["shards"]))
            for name, entry in now.on(devices).items()
        }
        assert (split_of(model) != proportional) == (
            now != how or devices != every
        )
        options = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        losses = [m.fit(x, y, **options).history for m in (model, expected)]
        assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-5)


def test_a_device_that_is_slower(strategy, calibration):
    first, _, third = strategy.devices
    found = calibration.among([first, third], {third: 3.0})
    assert [d.name for d in found.devices] == [first, third]
    assert {(k.source, k.target) for k in found.links} == {
        (first, third),
        (third, first),
    }
    assert found.devices[0] == calibration.devices[0]
    slow, before = found.devices[1], calibration.devices[2]
    for name in ("update_s", "byte_s", "message_s"):
        assert getattr(slow, name) == pytest.approx(3 * getattr(before, name))
    for key, work in before.works.items():
        for which in ("forward", "backward"):
            assert slow.works[key].at(which, 5, 0.5) == pytest.approx(
                3 * work.at(which, 5, 0.5)
            )


def test_the_chief_alone_needs_no_plan(strategy, model):
    how = HowSplit.last(model, strategy.devices)
    plain = convpar.merge(model)
    strategy.change_devices(strategy.devices[:1])
    assert strategy.planner().again(model, strategy.devices) is None
    relayout(model, plain, how, strategy)
    assert all(len(shards) == 1 for _, shards in split_of(model).values())


def test_what_its_user_has_split_stays_so(strategy, calibration):
    plan = {"conv2d_2": (1, 1, 6)}
    plain = network()
    with strategy.scope():
        own = convpar.parallelize(plain, plan=plan)
        model = convpar.parallelize(own, plan="auto", batch_size=BATCH)
    how = HowSplit.last(model, strategy.devices)
    name = next(n for n, s in split_of(own).items() if s[1] == (1, 1, 6))
    assert name not in how.planned
    plain = convpar.merge(model)
    strategy.change_devices([strategy.devices[i] for i in (0, 2)])
    relayout(model, plain, how, strategy)
    assert split_of(model)[name] == ("filters", (1, 6))


def test_nothing_is_known_of_a_model_that_was_not_planned(strategy, model):
    other = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    of = strategy.planner()
    assert of.plan_now(model) is not None
    assert of.plan_now(other) is None
    assert of.again(other, strategy.devices) is None
    assert of.saves(other, {}) is None
    assert of.saves(model, {}) == pytest.approx(0.0, abs=1e-9)


class Scripted:
    """Devices of which one is slower from the fourth look on."""

    def __init__(self):
        self.last = itertools.chain([1.0] * 3, itertools.repeat(8.0))

    def seconds(self, device):
        return next(self.last) if device.endswith("CPU:1") else 1.0


@pytest.mark.parametrize("margin", [0.1, slow(0.85)])
def test_a_plan_is_made_where_a_device_became_slower(
    strategy, calibration, model, monkeypatch, margin
):
    monkeypatch.setattr("tf_convpar.callbacks._rebalance.Speeds", Scripted)
    before = split_of(model)
    slower = {strategy.devices[1]: 8.0}
    saves = strategy.planner().saves(model, slower)
    assert 0.1 < saves < 0.9
    rebalance = convpar.callbacks.Rebalance(
        every=1e-6, cooldown="1h", margin=margin
    )
    # What is asked first finds 7 / 8.
    monkeypatch.setattr(
        HowSplit, "time", lambda self, *_: min(self.speeds.values(), default=1)
    )
    x, y = data()
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[rebalance])
    if margin > saves:
        assert rebalance.decisions == []
        assert split_of(model) == before
        return
    (decision,) = rebalance.decisions
    assert decision.saves == pytest.approx(saves)
    measured = calibration.among(strategy.devices, slower)
    assert split_of(model) == split_by(planner.plan(network(), measured))


def test_who_is_new_is_measured_and_planned_in(
    strategy, calibration, monkeypatch
):
    """The model began on two of three devices."""
    every, asked = strategy.devices, []

    def calibrate(model, strategy, batch, algorithm):
        asked.append((tuple(strategy.devices), batch, algorithm))
        return calibration.among(strategy.devices)

    strategy.change_devices(every[:2])
    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate.calibrate",
        lambda m, s, b, **o: calibrate(m, s, b, o["algorithm"]),
    )
    plain = network()
    with strategy.scope():
        model = convpar.parallelize(
            plain, plan="auto", batch_size=BATCH, algorithm="gemm"
        )
    how = HowSplit.last(model, strategy.devices).joined_by(every)
    assert how.devices == tuple(every)
    plain = convpar.merge(model)
    strategy.change_devices(every)
    relayout(model, plain, how, strategy)
    assert asked == [(tuple(d), BATCH, "gemm") for d in (every[:2], every)]
    three = planner.plan(network(), calibration)
    assert split_by(three) == split_of(model)
    assert {
        layer.algorithm
        for layer in model.layers
        if isinstance(layer, ConvParallel)
    } == {"gemm"}


def test_what_stays_on_the_chief_keeps_its_algorithm(strategy):
    plain = network()
    with strategy.scope():
        model = convpar.parallelize(plain, {".*": "chief"}, algorithm="direct")
    how = HowSplit.last(model, strategy.devices)
    plain = convpar.merge(model)
    strategy.change_devices(strategy.devices[:2])
    relayout(model, plain, how, strategy)
    found = [x for x in model.layers if isinstance(x, ConvParallel)]
    assert found
    assert {(x.algorithm, x.is_spread) for x in found} == {("direct", False)}


def test_what_fuses_still_does_beside_a_convolution_of_keras(strategy):
    """On the device that is left, as `algorithm="auto"` does on one."""
    keras.utils.clear_session(free_memory=False)
    x = keras.Input((2, 8, 8, 3))
    # Keras calls it in a way of its own, so it stays as it is.
    y = keras.layers.TimeDistributed(keras.layers.Conv2D(4, 3))(x)
    y = keras.layers.Conv2D(4, 3)(y[:, 0])
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
    plain = keras.Model(x, keras.layers.GlobalAveragePooling2D()(y))
    with strategy.scope():
        model = convpar.parallelize(plain, "equal", algorithm="auto")
    how = HowSplit.last(model, strategy.devices)
    plain = convpar.merge(model)
    strategy.change_devices(strategy.devices[:1])
    relayout(model, plain, how, strategy)
    calls = [vars(layer).get("call") for layer in model.layers]
    assert any(isinstance(call, Fused) for call in calls)


def test_who_is_new_has_a_share_as_others_have():
    how = HowSplit(
        ("a", "b"),
        {
            "one": LayerSplit("filters", (3, 1), "direct"),
            "two": LayerSplit("samples", None, "direct"),
            "three": LayerSplit("chief", None, "auto"),
        },
    )
    plan = how.joined_by(["b", "c"]).on(["a", "b", "c"])
    assert plan["one"] == {"split": "filters", "shards": (3, 1, 2)}
    assert plan["two"] == {"split": "samples", "shards": (1, 1, 1)}
    assert plan["three"] == "chief"
    assert how.joined_by([]) == how
