"""Calibration of real devices, in this process and in others."""

import forks
import keras
import pytest
import tensorflow as tf
from star_cases import cluster

import tf_convpar as convpar
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.planner import star as planner
from tf_convpar.planner.measure import _clock
from tf_convpar.planner.measure import _links
from tf_convpar.planner.measure._clock import Clock
from tf_convpar.planner.star.measure import _calibrate
from tf_convpar.planner.star.measure import _convolutions
from tf_convpar.planner.star.measure import _rest

CHIEF = "/job:localhost/replica:0/task:0/device:CPU:0"


@pytest.fixture(autouse=True)
def little_time(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    monkeypatch.setattr(_convolutions, "_RUN_S", 0.01)
    monkeypatch.setattr(_convolutions, "_DEVICE_S", 0.1)
    monkeypatch.setattr(_clock, "_TRIES", 1)
    monkeypatch.setattr(_clock, "_MOST", 5)
    monkeypatch.setattr(_links, "_TRAVEL_S", 0.01)


def network(optimizer="adam", units=10, activation="relu", loss=None):
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((16, 16, 1)),
            layers.Conv2D(32, 3, activation=activation, name="first"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, use_bias=False, name="second"),
            layers.Flatten(),
            layers.Dense(units, name="dense"),
        ]
    )
    if loss is None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


@pytest.mark.slow  # test_calibrate_a_cluster is quick.
@pytest.mark.filterwarnings("ignore:.*stayed unsteady")
def test_calibrate_here(strategy, tmp_path):
    said = []
    model = network()
    found = planner.calibrate(model, strategy, 32, report=said.append)
    assert [d.name for d in found.devices] == list(strategy.devices)
    assert [c.name for c in found.network] == ["first", "second"]
    first, second = found.network
    assert (first.input_gradient, second.input_gradient) == (False, True)
    assert (first.bias, second.bias) == (True, False)
    assert found.network.slots == 2
    for device in found.devices:
        assert device.update_s > 0
        assert device.memory_bytes > 2**20
        times = device.times["second"]
        assert times.filters[-1] == 64
        for which in ("forward", "input_gradient", "kernel_gradient"):
            seconds = getattr(times, which)
            assert all(0 < s < 1 for s in seconds)
        assert set(device.times["first"].input_gradient) == {0.0}
    pairs = {(link.source, link.target) for link in found.links}
    assert len(pairs) == 6
    assert all(link.bytes_per_s > 1e6 for link in found.links)
    assert 0 < found.rest_s < 1
    assert found.join_s > 0
    assert any("second, kernel gradient" in name for name in said)
    # What is known is not measured again.
    said.clear()
    again = planner.calibrate(model, strategy, 32, report=said.append)
    assert again == found
    assert said == []
    (file,) = (tmp_path / "calibrations").glob("*.json")
    assert planner.load(file) == found
    # Another batch is another calibration.
    planner.calibrate(model, strategy, 16)
    assert len(list((tmp_path / "calibrations").glob("*.json"))) == 2


@pytest.mark.slow  # It measures twice.
def test_another_rest_of_the_network_is_another_calibration(
    strategy, monkeypatch
):
    measured = []

    def measure(*args, **kwargs):
        measured.append(args)
        return cluster([1e11])

    monkeypatch.setattr(_calibrate, "measure_cluster", measure)
    for count, changes in enumerate(
        (
            {},
            {"units": 20},
            {"activation": "gelu"},
            {"loss": keras.losses.Poisson()},
            {"optimizer": keras.optimizers.Adam(amsgrad=True)},
        ),
        start=1,
    ):
        for _ in range(2):
            keras.utils.clear_session()
            planner.calibrate(network(**changes), strategy, 8)
            assert len(measured) == count
    # How fast it learns says nothing of how long a step takes.
    keras.utils.clear_session()
    planner.calibrate(network(keras.optimizers.Adam(0.7)), strategy, 8)
    assert len(measured) == count


@pytest.mark.filterwarnings("ignore:.*stayed unsteady")
def test_dry_run_keeps_nothing(tmp_path):
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    found = planner.calibrate(network(), strategy, 8, throughput="dry_run")
    assert found.links == ()
    assert found.join_s == 0
    assert not (tmp_path / "calibrations").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"throughput": "fast"}, "Expected `throughput`"),
        ({"strategy": tf.distribute.get_strategy()}, "ConvParallelStrategy"),
    ],
)
def test_bad_arguments(strategy, arguments, message):
    with pytest.raises(ValueError, match=message):
        planner.calibrate(
            **{
                "model": network(),
                "strategy": strategy,
                "batch_size": 8,
                **arguments,
            }
        )


def test_chief_leads():
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    strategy.devices = strategy.devices[::-1]
    with pytest.raises(ValueError, match="first of the strategy's devices"):
        planner.calibrate(network(), strategy, 8, throughput="dry_run")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = keras.layers.Conv2D(8, 3)

    def call(self, x):
        return self.conv(x)


def test_subclassed_model():
    model = Subclassed()
    model(tf.ones((1, 8, 8, 1)))
    with pytest.raises(ValueError, match="Sequential or functional"):
        _rest.rest_s(model, {"conv2d"}, 4, CHIEF, Clock())


def test_hollow_network_trains_all_but_the_convolutions():
    model = network("sgd")
    hollow = _rest.hollow_copy(model, {"first", "second"}, 4)
    assert [w.path.rpartition("/")[2] for w in hollow.trainable_weights] == [
        "kernel",
        "bias",
    ]
    x = tf.random.normal((4, 16, 16, 1))
    assert hollow(x).shape == model(x).shape
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = hollow(x)
    assert tape.gradient(y, x).shape == x.shape


PROGRAM = """
import json, sys
import keras
import tf_convpar as convpar
from tf_convpar.planner import star as planner
sys.path.insert(0, "tests")
from test_star_calibrate import network
strategy = convpar.ConvParallelStrategy()
model = network()
begin = __import__("time").perf_counter()
found = planner.calibrate(model, strategy, 32, throughput="dry_run")
print(json.dumps(planner.to_json(found)))
"""


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:.*stayed unsteady")
def test_calibrate_a_cluster():
    with local_workers(1, threads=1) as local:
        found = planner.from_json(
            forks.found(["-c", PROGRAM], local.env(), 300)
        )
    chief, worker = found.devices
    assert chief.name.startswith("/job:chief")
    assert worker.name.startswith("/job:worker")
    assert worker.memory_bytes > 2**20
    assert set(worker.times) == {"first", "second"}
    assert 0 <= found.transfer_s < 1e-7
    there = found.link(chief.name, worker.name)
    assert 1e7 < there.bytes_per_s < 1e11
    assert 0 < there.latency_s < 0.1
    plan = planner.plan(found)
    assert sum(plan["second"]) == 64
    assert plan.prediction.step_s <= min(plan.single_s.values()) * 1.000001
