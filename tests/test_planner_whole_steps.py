"""A plan is held against the clock: steps of the whole model are timed."""

import dataclasses
import functools
import random
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from plans_of_graphs import any_split
from plans_of_graphs import calibration_of
from plans_of_graphs import residual
from plans_of_graphs import steps_as_predicted

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar._compat.tensorflow import function_names
from tf_convpar.layers import ConvParallel
from tf_convpar.planner import automatic
from tf_convpar.planner.call_ways import DEFAULTS
from tf_convpar.planner.measure import _whole_steps
from tf_convpar.planner.measure import step_seconds

BATCH = 12
SECONDS = {"split": 0.080, "whole": 0.100}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def network(**compiled):
    keras.utils.clear_session(free_memory=False)
    model = residual()
    model.compile("adam", "mse", **compiled)
    return model


@pytest.fixture
def calibration(strategy, monkeypatch):
    """Devices that share no cores, which the CPUs of this process do."""
    found = calibration_of(
        network(), strategy.devices, batch=BATCH, rate=1e10, latency=1e-6
    )
    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate.calibrate",
        lambda *_, **__: found,
    )
    return found


def lasting(monkeypatch, **seconds):
    """Steps take so long, whole and split; returns what has been timed."""
    timed = []

    def took(model, strategy, plans, batch, how, report):
        timed.append((batch, how))
        return [
            seconds["split" if any_split(plan) else "whole"] for plan in plans
        ]

    monkeypatch.setattr("tf_convpar.planner.measure._whole_steps._timed", took)
    return timed


def made(strategy, **given):
    plain = network()
    with strategy.scope():
        return convpar.parallelize(
            plain, plan="auto", batch_size=BATCH, **given
        )


def is_split(model):
    return any(
        isinstance(layer, ConvParallel) and sum(map(bool, layer.shards)) > 1
        for layer in model.layers
    )


@pytest.mark.parametrize(
    ("split", "whole", "stays"),
    [
        slow((0.080, 0.100, True)),
        (0.094, 0.100, True),
        (0.096, 0.100, False),
        slow((0.200, 0.100, False)),
        # It does not fit the chief's memory, or not that of a device.
        (0.200, float("inf"), True),
        (float("inf"), 0.100, False),
    ],
)
def test_a_split_stays_that_is_ahead(
    strategy, calibration, monkeypatch, capsys, split, whole, stays
):
    timed = lasting(monkeypatch, split=split, whole=whole)
    model = made(strategy, moments="own", algorithm="direct")
    assert is_split(model) == stays
    how = {"algorithm": "direct", "wire_dtype": None, "moments": "own"}
    assert timed == [(BATCH, how)]
    said = capsys.readouterr().out
    assert ("Not split" in said) != stays
    plan = strategy.planner().plan_now(network())
    assert plan.reason in said
    if whole < float("inf"):
        assert "100 ms on CPU:0 alone" in said
        assert plan.single_s[strategy.devices[0]] == whole
        assert plan.prediction.step_s == (split if stays else whole)
        assert max(s.end for s in plan.prediction.spans) == pytest.approx(
            plan.prediction.step_s
        )
    # What was timed is kept, for other programs as well.
    other = convpar.ConvParallelStrategy(devices=strategy.devices)
    assert is_split(made(other, moments="own", algorithm="direct")) == stays
    assert len(timed) == 1
    made(strategy)
    assert len(timed) == 2


@pytest.mark.parametrize(
    ("split", "rate", "ahead"),
    [
        (0.200, 1e10, "SyncSGD"),
        (0.200, 1e4, "DiLoCo"),
        (0.200, 1e2, None),
        (0.020, 1e10, None),
    ],
)
def test_it_is_said_where_replicas_are_ahead(
    strategy, monkeypatch, split, rate, ahead
):
    found = calibration_of(
        network(),
        strategy.devices,
        BATCH,
        0,
        rate,
        1e-6,
        speeds=[1.0, 1.5, 1.0],
    )
    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate.calibrate",
        lambda *_, **__: found,
    )
    lasting(monkeypatch, split=split, whole=0.100)
    made(strategy)
    said = strategy.planner().plan_now(network()).reason
    predicted = re.search(r"ed to take (\d+\.?\d*) ms .*replicas\.(\w+)", said)
    assert (predicted and predicted[2]) == ahead
    assert ("which step by themselves" in said) == (ahead == "DiLoCo")
    if predicted:
        # As long, beside a step on the chief, as it is predicted to be.
        ways = planner.compare(network(), found, wire="int8")
        (replicas_s,) = [way.step_s for way in ways if way.name == ahead]
        single_s = planner.plan(network(), found).single_s
        expected = 100 * replicas_s / single_s[strategy.devices[0]]
        assert float(predicted[1]) == pytest.approx(expected, rel=0.01)
        assert float(predicted[1]) < 90


@pytest.mark.parametrize(
    ("by_samples", "taken"), [(0.070, True), (0.090, False)]
)
def test_samples_only_are_tried_besides_a_mixture(
    strategy, calibration, monkeypatch, capsys, by_samples, taken
):
    mixture = convpar.plan(network(), calibration)
    assert set(mixture.splits.values()) == {"samples", "filters"}

    def took(model, strategy, plans, batch, how, report):
        seconds = {"whole": 0.1, "samples": by_samples, "mixture": 0.08}
        return [seconds[kind_of(plan)] for plan in plans]

    def kind_of(plan):
        if not any_split(plan):
            return "whole"
        by = {plan.way(name) for name in plan} - {"chief"}
        return "samples" if by == {"samples"} else "mixture"

    monkeypatch.setattr("tf_convpar.planner.measure._whole_steps._timed", took)
    made(strategy)
    plan = strategy.planner().plan_now(network())
    assert kind_of(plan) == ("samples" if taken else "mixture")
    assert plan.prediction.step_s == min(by_samples, 0.08)
    said = capsys.readouterr().out
    assert "80 ms with the best plan" in said
    assert f"{1e3 * by_samples:.0f} ms by samples only" in said
    # Predictions do not bring back what the clock has refused.
    again = strategy.planner().again(network(), strategy.devices)
    assert kind_of(again) == kind_of(plan)
    assert strategy.planner().saves(network(), {}) == pytest.approx(0)


def test_what_is_hardly_ahead_is_tried_though_no_plan_by_itself(
    strategy, calibration, monkeypatch
):
    """A prediction errs by more than the clock."""
    monkeypatch.setattr("tf_convpar.planner._plan.WORTH", 0.99)
    assert len(convpar.plan(network(), calibration).used) == 1
    timed = lasting(monkeypatch, **SECONDS)
    assert is_split(made(strategy))
    assert len(timed) == 1


def test_no_split_is_tried_where_none_is_ahead(strategy, monkeypatch, capsys):
    """What one device takes is still told by the clock."""
    links = {"rate": 10.0, "latency": 1.0}
    found = calibration_of(network(), strategy.devices, batch=BATCH, **links)
    monkeypatch.setattr(
        "tf_convpar.planner.measure._calibrate.calibrate",
        lambda *_, **__: found,
    )
    timed = lasting(monkeypatch, **SECONDS)
    assert not is_split(made(strategy))
    said = capsys.readouterr().out
    assert "no split is predicted to be faster" in said
    assert "with the best plan" not in said
    assert len(timed) == 1
    plan = strategy.planner().plan_now(network())
    assert plan.prediction.step_s == SECONDS["whole"]
    assert plan.single_s[strategy.devices[0]] == SECONDS["whole"]


@pytest.mark.parametrize(
    ("by_samples", "stays"), [(0.080, True), (0.097, False)]
)
def test_samples_only_are_tried_where_no_split_is_predicted_to_be_ahead(
    strategy, calibration, monkeypatch, capsys, by_samples, stays
):
    """By little: the chief may have been measured in a good minute."""
    alone = convpar.plan(network(), calibration)
    simple = planner.by_samples(network(), calibration, DEFAULTS)
    chief = strategy.devices[0]
    unsplit = planner.unsplit_plan(
        network(), calibration, DEFAULTS, "Not split: 1 ms."
    )
    lucky = 0.9 * simple.prediction.step_s
    unsplit = dataclasses.replace(
        unsplit, single_s={**alone.single_s, chief: lucky}
    )
    monkeypatch.setattr(automatic, "_kept_plan", lambda *_, **__: unsplit)
    lasting(monkeypatch, split=by_samples, whole=0.100)
    assert is_split(made(strategy)) == stays
    said = capsys.readouterr().out
    assert f"{1e3 * by_samples:.0f} ms by samples only" in said
    assert ("Not split: 1 ms." in said) != stays


def test_what_was_seen_counts_when_it_is_planned_again(
    strategy, calibration, monkeypatch
):
    """A split of which steps took three times as long as predicted."""
    monkeypatch.setattr(
        "tf_convpar.planner.measure._whole_steps._timed",
        functools.partial(steps_as_predicted, longer=3),
    )
    model = made(strategy)
    assert not is_split(model)
    mine = strategy.planner()
    chief, *others = strategy.devices
    assert not any_split(mine.again(network(), strategy.devices))
    assert mine.saves(network(), {chief: 1.1}) == pytest.approx(0)
    assert any_split(mine.again(network(), strategy.devices, {chief: 10.0}))
    assert 0.3 < mine.saves(network(), {chief: 10.0}) < 0.9


def test_a_step_that_another_program_held_up_does_not_decide(monkeypatch):
    """Steps are long, so that two would do."""
    monkeypatch.setattr(
        "tf_convpar.planner.measure._whole_steps._ENOUGH_S", 0.1
    )
    seconds = iter([0.05, 0.05, 0.05, 1.0])

    class Steps:
        def run(self, inputs):
            time.sleep(next(seconds, 0.05))
            return tf.constant(0.0)

    assert _whole_steps._median(Steps(), tf.zeros([1])) < 0.1


def test_shards_are_updated_where_they_lie_as_in_fit(strategy):
    """An optimizer that was given merged weights would double the bytes."""
    with strategy.scope():
        copy = convpar.parallelize(
            network(), {".*": "samples"}, algorithm="auto", verbose=False
        )
    steps = _whole_steps._Steps(copy)
    inputs = tf.zeros((BATCH, *copy.input_shape[1:]))
    graph = steps.run.get_concrete_function(inputs).graph
    found = [
        op.device
        for op in graph.get_operations()
        if op.type == "ResourceApplyAdam"
    ]
    held = [
        shard.device
        for weight in copy.trainable_weights
        for shard in getattr(weight.value, "shards", [weight.value])
    ]
    assert set(held) == set(strategy.devices)
    assert sorted(found) == sorted(held)


def test_real_steps_are_timed_and_leave_nothing_behind(strategy, calibration):
    """Of the plan and of the chief alone, by a copy of the model."""
    plain = network()
    split = planner.plan(plain, calibration)
    assert any_split(split)
    whole = planner.unsplit_plan(plain, calibration, DEFAULTS, "")
    keras.utils.set_random_seed(3)
    before = [np.array(w) for w in plain.weights]
    drawn = [random.random(), np.random.rand(), float(tf.random.uniform(()))]
    keras.utils.set_random_seed(3)
    said = []
    # The first time makes what stays: constants, connections.
    for batch in (BATCH, BATCH + 1):
        functions = function_names()
        took = step_seconds(
            plain,
            strategy,
            [split, whole],
            planner.Calibration(**vars(calibration) | {"batch": batch}),
            report=said.append,
            algorithm="auto",
        )
    assert len(took) == 2 and 0 < min(took) <= max(took) < 10
    assert said[-2:] == ["steps on 3 of 3 devices", "steps on 1 of 3 devices"]
    assert function_names() <= functions
    for weight, value in zip(plain.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert int(plain.optimizer.iterations) == 0
    now = [random.random(), np.random.rand(), float(tf.random.uniform(()))]
    assert now == drawn


@pytest.mark.parametrize("jit", [True, slow(False)])
def test_steps_are_compiled_as_those_of_fit(
    strategy, calibration, monkeypatch, jit
):
    plain = network(jit_compile=jit)
    compiled = []
    function = tf.function

    def noted(*args, **kwargs):
        compiled.append(kwargs.get("jit_compile"))
        return function(*args, **kwargs)

    monkeypatch.setattr(_whole_steps.tf, "function", noted)
    split = planner.plan(plain, calibration)
    whole = planner.unsplit_plan(plain, calibration, DEFAULTS, "")
    step_seconds(
        plain,
        strategy,
        [split, whole],
        calibration,
        report=lambda now: None,
        algorithm="direct",
    )
    ours = [asked for asked in compiled if asked is not None]
    # XLA does not compile what is on several devices.
    assert ours[0] is False
    assert jit in ours


@pytest.mark.parametrize("kind", ["sequential", "mapping", "numbers"])
def test_inputs_are_those_that_the_model_takes(strategy, kind):
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.Conv2D(4, 3)(x)
    y = keras.layers.GlobalAveragePooling2D()(y)
    if kind == "sequential":
        model = keras.Sequential(
            [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)]
        )
    elif kind == "mapping":
        scale = keras.Input((1,), name="scale")
        model = keras.Model({"image": x, "scale": scale}, {"a": y * scale})
    else:
        number = keras.Input((3,), dtype="int32", name="number")
        z = keras.layers.Flatten()(keras.layers.Embedding(5, 2)(number))
        model = keras.Model([x, number], [y, z])
    found = calibration_of(model, strategy.devices, batch=4)
    whole = planner.unsplit_plan(model, found, DEFAULTS, "")
    (took,) = step_seconds(
        model, strategy, [whole], found, report=lambda now: None
    )
    assert 0 < took < 10
