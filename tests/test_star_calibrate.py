"""Calibration of real devices, in this process and in others."""

import dataclasses

import forks
import keras
import pytest
import tensorflow as tf
from plans_of_graphs import calibration_of
from star_cases import device_name

import tf_convpar as convpar
from tf_convpar import planner as whole_models
from tf_convpar.algorithms import Geometry
from tf_convpar.cluster.local_cluster import local_workers
from tf_convpar.planner import balancing
from tf_convpar.planner import star as planner
from tf_convpar.planner import work_keys
from tf_convpar.planner.star import quantum_of
from tf_convpar.planner.star import star_of
from tf_convpar.sharding import calls_of

pytestmark = pytest.mark.usefixtures("little_time")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path))
    return tmp_path


def network(optimizer="adam"):
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((16, 16, 1)),
            layers.Conv2D(32, 3, activation="relu", name="first"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, use_bias=False, name="second"),
            layers.Flatten(),
            layers.Dense(10, name="dense"),
        ]
    )
    model.compile(optimizer, "mse")
    return model


@pytest.mark.slow  # test_calibrate_a_cluster is quick.
def test_calibrate_here(strategy, cache):
    said = []
    model = network()
    found = planner.calibrate(model, strategy, 32, report=said.append)
    assert [d.name for d in found.devices] == list(strategy.devices)
    first, second = found.network
    assert (first.name, second.name) == ("first", "second")
    assert (first.input_gradient, second.input_gradient) == (False, True)
    assert (first.bias, second.bias) == (True, False)
    assert found.network.slots == 2
    for device in found.devices:
        assert device.update_s > 0
        assert device.memory_bytes > 2**20
        assert device.times["second"].filters == (16, 32, 64)
    assert len({(k.source, k.target) for k in found.links}) == 6
    assert all(link.bytes_per_s > 1e6 for link in found.links)
    assert found.join_s > 0
    # What is known is not measured again, by the other planner neither.
    said.clear()
    assert planner.calibrate(model, strategy, 32, report=said.append) == found
    measured = convpar.calibrate(model, strategy, 32)
    assert said == []
    assert measured.links == found.links
    (file,) = (cache / "stars").glob("*.json")
    assert planner.load(file) == found
    # Another batch is another calibration.
    planner.calibrate(model, strategy, 16)
    assert len(list((cache / "stars").iterdir())) == 2


def test_dry_run_keeps_nothing(cache):
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    found = planner.calibrate(network(), strategy, 8, throughput="dry_run")
    assert found.links == ()
    assert found.join_s == 0
    assert not any(cache.rglob("*.json"))


class Doubled(keras.layers.Conv2D):
    def call(self, x):
        return 2 * super().call(x)


def test_the_largest_convolution_is_of_the_users_own_class():
    model = keras.Sequential([keras.Input((8, 8, 3)), Doubled(4, 3, name="c")])
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    found = planner.calibrate(model, strategy, 4, throughput="dry_run")
    assert found.chief.times["c"].at("forward", 4) > 0


def test_rates_take_the_place_of_measured_times():
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0"])
    found = planner.calibrate(network(), strategy, 8, throughput=[1e9])
    (_, second), times = found.network, found.chief.times["second"]
    for which in ("forward", "input_gradient", "kernel_gradient"):
        expected = 2 * second.multiplications(8, 64) / 1e9
        assert times.at(which, 64) == pytest.approx(expected)
    assert found.quantum == 1
    assert found.rest_s > 0


def test_it_is_what_was_measured_of_the_whole_model():
    """A step on the chief alone is that of the other planner."""
    model = network()
    graph = calls_of(model)
    devices = [device_name(d) for d in range(3)]
    measured = calibration_of(model, devices, 16)
    convolutions = planner.of_model(model, 16)
    found = star_of(graph, convolutions, measured, join_s=1e-8, quantum=8)
    alone = {c.name: (c.filters, 0, 0) for c in convolutions}
    step_s = planner.predict(found, alone).step_s
    expected = balancing.alone(graph, measured)[devices[0]]
    assert step_s == pytest.approx(expected)
    assert (found.join_s, found.transfer_s, found.quantum) == (1e-8, 1e-9, 8)
    calls = {call.name: call for call in graph.calls}
    for device, own in zip(found.devices, measured.devices, strict=True):
        work = own.works[work_keys.key(graph, calls["second"])]
        times = device.times["second"]
        for filters in times.filters:
            backward = work.at("backward", 16, filters / 64)
            assert times.at("kernel_gradient", filters) + times.at(
                "input_gradient", filters
            ) == pytest.approx(backward)
        assert set(device.times["first"].input_gradient) == {0.0}


def test_the_star_is_a_method():
    model = network()
    devices = [device_name(d) for d in range(3)]
    measured = calibration_of(model, devices, 16, rate=1e9)
    plan = convpar.plan(model, measured, by="star")
    assert plan == planner.plan(planner.of_measurements(model, measured))
    assert set(plan.splits.values()) == {"filters"}
    assert sum(n > 0 for n in plan["second"]) > 1
    # Half as many bytes of each number.
    other = convpar.plan(model, measured, "bfloat16", by="star")
    assert other.prediction.step_s < plan.prediction.step_s
    with pytest.raises(ValueError, match="`by` to be one of model, star"):
        convpar.plan(model, measured, by="paper")
    # Not the plan of one byte a number, in which nothing can travel.
    for by in ("model", "star"):
        with pytest.raises(ValueError, match="wire_dtype.*float32.*'int8'"):
            convpar.plan(model, measured, "int8", by=by)


@pytest.mark.parametrize(
    ("saves", "expected"),
    [
        # What 4, 8 and 16 kernels less save, as a part of the last.
        ((0.0, 0.0, 1.0), 16),
        ((0.0, 0.5, 1.0), 8),
        ((0.25, 0.5, 1.0), 1),
        ((0.0, 0.0, -1.0), 16),
    ],
)
def test_steps_in_which_time_grows(saves, expected):
    class Given:
        def time(self, run, name):
            kernels = int(name.split()[-2])
            less = {64: 0.0, 60: saves[0], 56: saves[1], 48: saves[2]}
            return 1.0 - 0.3 * less[kernels]

    geometry = Geometry((6, 6), 2, 64, (3, 3), batch=4)
    assert quantum_of(geometry, None, "/device:CPU:0", Given()) == expected
    few = dataclasses.replace(geometry, filters=31)
    assert quantum_of(few, None, "/device:CPU:0", Given()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"throughput": "fast"}, "Expected `throughput`"),
        ({"throughput": [1e9]}, "3 rates, one for each device"),
        ({"strategy": tf.distribute.get_strategy()}, "ConvParallelStrategy"),
    ],
)
def test_bad_arguments(strategy, arguments, message):
    given = {"model": network(), "strategy": strategy, "batch_size": 8}
    with pytest.raises(ValueError, match=message):
        planner.calibrate(**given | arguments)


def test_a_convolution_within_another_layer(strategy):
    x = keras.Input((4, 8, 8, 3))
    within = keras.layers.TimeDistributed(keras.layers.Conv2D(8, 3, name="c"))
    model = keras.Model(x, within(x))
    with pytest.raises(ValueError, match="within other layers: c"):
        planner.calibrate(model, strategy, 8, throughput="dry_run")
    described = whole_models.described(model, "2xcpu:100GFLOPS")
    with pytest.raises(ValueError, match="within other layers: c"):
        convpar.plan(model, described, by="star")


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


def test_subclassed_model(strategy):
    model = Subclassed()
    model(tf.ones((1, 8, 8, 1)))
    with pytest.raises(ValueError, match="Sequential or functional"):
        planner.calibrate(model, strategy, 4)


PROGRAM = """
import json, sys
import keras
import tf_convpar as convpar
from tf_convpar.planner import star as planner
sys.path.insert(0, "tests")
from test_star_calibrate import network
strategy = convpar.ConvParallelStrategy()
found = planner.calibrate(network(), strategy, 32, throughput="dry_run")
print(json.dumps(planner.to_json(found)))
"""


@pytest.mark.alone
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
