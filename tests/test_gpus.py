"""GPUs, as far as they can be tried where there is none.

Device names, a driver's files and calibrations are the inputs of what decides;
none of these asks whether there is a card.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from plans_of_graphs import calibration_of
from plans_of_graphs import residual

import tf_convpar as convpar
from tf_convpar import machines
from tf_convpar import ops
from tf_convpar import planner
from tf_convpar._compat.tensorflow import memory_limits
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import candidates
from tf_convpar.algorithms import choose
from tf_convpar.algorithms import processor
from tf_convpar.planner.measure import clock

L = keras.layers
HERE = "/job:localhost/replica:0/task:0/device:"
GPU, CPU = f"{HERE}GPU:0", f"{HERE}CPU:0"
# As the drivers 535 and 580, the latter in its open form, have them.
VERSIONS = {
    "535.161.08": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08"
    "  Sat Feb 17 22:55:48 UTC 2024\nGCC version:  gcc version 12.2.0\n",
    "580.82.07": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "
    "580.82.07  Release Build  (root@host)  Wed Aug 27 17:54:35 UTC 2025\n",
}


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver's files, in which tests write; TensorFlow is not asked."""
    monkeypatch.setattr("tf_convpar.machines._card._DRIVER", str(tmp_path))
    monkeypatch.setattr(
        "tf_convpar.machines._card._number", lambda device: None
    )
    (tmp_path / "version").write_text(VERSIONS["535.161.08"])
    for bus, model in (("0000:1b:00.0", "H100 80GB"), ("0000:43:00.0", "T4")):
        folder = tmp_path / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA {model}\nIRQ:   \t\t 16\n"
        )
    return tmp_path


def test_a_card_is_known_by_the_files_of_its_driver(driver):
    card = machines.card_of(GPU)
    assert card.model == "NVIDIA H100 80GB, NVIDIA T4"
    assert card.driver == "535.161.08"
    assert machines.model(GPU) == card.model
    assert machines.model(CPU) == machines.processor(CPU)
    before = machines.identity(GPU)
    assert before[-len(machines.identity(CPU)) :] == machines.identity(CPU)
    (driver / "version").write_text(VERSIONS["580.82.07"])
    assert machines.card_of(GPU).driver == "580.82.07"
    assert machines.identity(GPU) != before


def test_without_a_driver_nothing_is_known(driver, monkeypatch):
    monkeypatch.setattr(
        "tf_convpar.machines._card._DRIVER", str(driver / "nowhere")
    )
    assert machines.card_of(GPU) == machines.Card("", "", "", 0)
    assert machines.model(GPU) == machines.processor(CPU)


def test_logical_gpus_of_one_card_are_measured_one_after_the_other(monkeypatch):
    assert [machines.card_number(i, [2, 1]) for i in range(4)] == [
        0,
        0,
        1,
        None,
    ]
    cards = {f"{HERE}GPU:{i}": n for i, n in enumerate([0, 0, 1])}
    monkeypatch.setattr(
        "tf_convpar.machines._machine.card_of",
        lambda d: machines.Card("", "", "", cards[d]),
    )
    first, second, third = cards
    assert sorted(machines.sharing_cores([first, CPU, second, third])) == [
        [CPU],
        [first, second],
        [third],
    ]


def test_memory_of_a_gpu_is_what_its_process_may_allocate(monkeypatch):
    # For a CPU TensorFlow says 256 MiB.
    assert memory_limits()[CPU] == 256 << 20
    assert machines.memory_bytes(CPU) != 256 << 20
    assert machines.memory_bytes(GPU) == memory_limits().get(GPU)


def test_clocks_are_waited_for_until_times_settle(monkeypatch):
    """Spells of half a second: 0.2 s a run at first, 0.1 s in the end."""
    times = iter([0.2] * 3 + [0.12] * 5 + [0.1] * 20)
    monkeypatch.setattr(
        "tf_convpar.planner.measure.clock.seconds_of", lambda run: next(times)
    )
    assert clock.settle(lambda: None) == 3 + 5 + 5 + 5
    assert len(list(times)) == 10


def test_clocks_that_never_settle_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("tf_convpar.planner.measure.clock._SETTLE_S", 0.2)
    monkeypatch.setattr("tf_convpar.planner.measure.clock._SPELL_S", 0.0)
    numbers = np.random.default_rng(0)
    monkeypatch.setattr(
        "tf_convpar.planner.measure.clock.seconds_of",
        lambda run: run() or numbers.uniform(1, 2),
    )
    monkeypatch.setattr("tf_convpar.planner.measure.clock._SETTLED", 0.0)
    assert clock.settle(lambda: None) > 1


def measured_with_a_gpu(tmp_path, speed):
    """Times of this CPU; those of the GPU are edited in: no card was there."""
    strategy = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    with strategy.scope():
        model = residual()
        found = planner.calibrate(model, strategy, 8, keep=False)
    first, second = found.devices
    links = [
        dataclasses.replace(link, bytes_per_s=12e9, latency_s=2e-5)
        for link in found.links
    ]
    found = dataclasses.replace(
        found,
        devices=(
            first.times(1 / speed),
            # So that both of this machine's devices are alike.
            dataclasses.replace(first, name=second.name),
        ),
        links=tuple(links),
    )
    file = tmp_path / "calibration.json"
    found.save(file)
    file.write_text(file.read_text().replace(first.name, GPU))
    return model, planner.load(file)


def test_a_slow_cpu_is_left_out_beside_a_fast_gpu(little_time, tmp_path):
    model, calibration = measured_with_a_gpu(tmp_path, speed=50)
    assert calibration.devices[0].name == GPU
    plan = planner.plan(model, calibration)
    assert plan and all(counts[1] == 0 for counts in plan.values())
    assert plan.reason.startswith("Not split")


@pytest.mark.parametrize(("speed", "splits"), [(50.0, False), (1.0, True)])
def test_speeds_decide_and_not_types(speed, splits):
    """Beside a GPU that is no faster, the same CPU takes part."""
    model = residual()
    devices = [GPU, f"{HERE}CPU:1"]
    calibration = calibration_of(
        model, devices, rate=12e9, latency=1e-6, speeds=[speed, 1.0]
    )
    plan = planner.plan(model, calibration)
    assert any(counts[1] > 0 for counts in plan.values()) == splits


def test_memory_of_the_gpu_is_a_cap():
    model = residual()
    devices = [GPU, f"{HERE}CPU:1"]
    calibration = calibration_of(
        model, devices, rate=12e9, latency=1e-6, speeds=[50.0, 1.0]
    )
    gpu, cpu = calibration.devices
    small = dataclasses.replace(
        calibration, devices=(dataclasses.replace(gpu, memory_bytes=1), cpu)
    )
    with pytest.raises(ValueError, match=f"{GPU}': 1"):
        planner.plan(model, small)


def test_no_algorithm_races_for_a_gpu(monkeypatch):
    monkeypatch.setattr("tf_convpar.algorithms.race.race", None)
    geometry = Geometry((14, 14), 512, 512, window=(3, 3), batch=8)
    for device in ("GPU:0", GPU, "/job:worker/task:1/device:GPU:3"):
        found = choose(geometry, device)
        passes = (getattr(found, f.name) for f in dataclasses.fields(found))
        assert {each.name for each in passes} == {"direct"}
        assert processor.cpu(device) is None
    assert "cuDNN" in candidates.rule(geometry, None)
    assert candidates.rule(geometry, CPU) is None
    layer = convpar.ConvParallel2D(8, 3, algorithm="auto")
    (stage,) = layer.stages()
    assert stage.algorithm_on(GPU) == "direct"
    assert stage.algorithm_on(CPU) == "auto"


def network():
    x = keras.Input((16, 16, 8))
    y = L.Conv2D(32, 3, padding="same", use_bias=False)(x)
    y = L.ReLU()(L.BatchNormalization()(y))
    y = L.DepthwiseConv2D(5, padding="same")(y)
    y = L.MaxPooling2D(3, 2)(y)
    return keras.Model(x, L.Dense(3)(L.Flatten()(y)))


def ops_of_a_step(model):
    """Names of the package's own ops in a training step of a model."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_weights])

    traced = tf.function(step).get_concrete_function(
        tf.TensorSpec((4, 16, 16, 8))
    )
    return {
        op.type
        for op in traced.graph.get_operations()
        if op.type.startswith("TfConvpar>")
    }


@pytest.mark.parametrize(("first", "own"), [(CPU, True), (GPU, False)])
def test_auto_puts_no_op_on_a_gpu_that_has_none_there(monkeypatch, first, own):
    """A program whose default device is a GPU, as TensorFlow would have it."""
    monkeypatch.setattr(
        "tf_convpar.layers._chief.default_devices", lambda: [first, CPU]
    )
    model = convpar.parallelize(network(), algorithm="auto")
    # The twin has no ops of its own.
    assert bool(ops_of_a_step(model)) == (own and ops.load())
