"""Which way to train is the fastest, against steps written out by hand."""

import dataclasses
import json
import math

import keras
import pytest
from click.testing import CliRunner
from plans_of_graphs import calibration_of
from plans_of_graphs import chain
from plans_of_graphs import residual

from tf_convpar import planner
from tf_convpar.cli.simulate import command
from tf_convpar.placement import copy_pairs
from tf_convpar.placement import sum_pairs
from tf_convpar.planner import _group_ways
from tf_convpar.planner import work_keys
from tf_convpar.planner.linear_program import LinearProgram
from tf_convpar.planner.linear_program import NoProof
from tf_convpar.sharding import calls_of

A, B, C, D = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(4))


def of_kind(ways, kind, method=None):
    (found,) = [w for w in ways if (w.kind, w.method) == (kind, method)]
    return found


def computed(model, calibration, device, samples):
    """Seconds of a replica's gradient, without what travels."""
    graph = calls_of(model)
    return sum(
        calibration.devices[device]
        .works[work_keys.key(graph, call)]
        .at(which, samples, on_shards=False)
        for call in graph.calls
        if call.layer is not None
        for which in ("forward", "backward")
    )


def two(model, rate, speeds=(1.0, 0.5)):
    found = calibration_of(model, [A, B], rate=rate, speeds=list(speeds))
    weights = sum(math.prod(w.shape) for w in model.trainable_weights)
    links = {(k.source, k.target): k for k in found.links}
    return found, weights, links


@pytest.mark.parametrize("rate", (1e8, 1e4))
def test_weights_travel_while_gradients_are_computed(rate):
    model = chain()
    calibration, weights, links = two(model, rate)
    way = of_kind(planner.compare(model, calibration), "replicas", "SyncEASGD")
    a, b = way.batches
    assert a + b == calibration.batch
    delay = 2 * (4e-9 * weights + 1e-5)
    gradients = delay + max(
        computed(model, calibration, 0, a), computed(model, calibration, 1, b)
    )
    slowest = min(link.bytes_per_s for link in links.values())
    travels = 1e-4 + 4 * weights / slowest
    assert (travels > gradients) == (rate == 1e4)
    step = max(gradients, travels) + 2e-7 * weights
    assert way.step_s == pytest.approx(step)
    assert not way.exact


def test_the_plan_and_the_best_device_stand_beside():
    model = residual()
    calibration = calibration_of(
        model, [A, B, C], rate=1e9, speeds=[1.0, 2.0, 1.0]
    )
    plan = planner.plan(model, calibration)
    ways = planner.compare(model, calibration)
    assert of_kind(ways, "alone").groups == ((B,),)
    assert of_kind(ways, "alone").step_s == plan.single_s[B]
    assert of_kind(ways, "split").step_s == plan.prediction.step_s
    rates = [way.samples_per_s for way in ways]
    assert rates == sorted(rates, reverse=True)
    assert planner.advice(ways).startswith("With the numbers of one device, ")
    groups = of_kind(ways, "groups", "SyncEASGD")
    # The fast one alone, the two slow ones together.
    assert groups.groups == ((B,), (A, C))
    assert sum(groups.batches) == calibration.batch


def test_groups_take_as_long_as_their_slowest():
    """Their own plans, with links that take no time worth counting."""
    model = residual()
    calibration = calibration_of(model, [A, B, C, D], rate=1e15, latency=0.0)
    groups = [
        w for w in planner.compare(model, calibration) if w.kind == "groups"
    ]
    assert sorted(len(w.groups) for w in groups) == [2, 3]
    (way,) = [w for w in groups if len(w.groups) == 2]
    steps = []
    for names, batch in zip(way.groups, way.batches, strict=True):
        devices = [d for d in calibration.devices if d.name in names]
        devices.sort(key=lambda device: names.index(device.name))
        own = dataclasses.replace(
            calibration, devices=tuple(devices), batch=batch
        )
        steps.append(planner.plan(model, own).prediction.step_s)
    assert way.step_s == pytest.approx(max(steps), rel=1e-6)
    # Of twelve samples.
    assert way.batches == (6, 6)


def test_devices_without_the_memory_get_no_replica():
    model = chain()
    calibration = calibration_of(model, [A, B, C], rate=1e9)
    devices = list(calibration.devices)
    devices[1] = dataclasses.replace(devices[1], memory_bytes=1000)
    calibration = dataclasses.replace(calibration, devices=tuple(devices))
    way = of_kind(planner.compare(model, calibration), "replicas", "SyncEASGD")
    assert way.groups == ((A,), (C,))


def test_a_replica_needs_memory_for_its_part_of_the_batch():
    """No device has room for all of it."""
    x = keras.Input((64, 64, 3))
    y = keras.layers.Conv2D(8, 3, padding="same")(x)
    model = keras.Model(x, y)
    calibration = planner.described(model, "2xcpu:100GFLOPS", batch_size=32)
    maps = 32 * 64 * 64 * 8 * 4
    devices = tuple(
        dataclasses.replace(device, memory_bytes=round(0.75 * maps))
        for device in calibration.devices
    )
    calibration = dataclasses.replace(calibration, devices=devices)
    names = {way.method for way in planner.compare(model, calibration)}
    assert {"SyncSGD", "DiLoCo"} <= names


def test_what_was_proven_is_kept_when_a_proof_takes_too_long(monkeypatch):
    """Of one cut of several; and of groups, which are beside the plan."""
    model = chain()
    calibration = calibration_of(model, [A, B, C], rate=1e9)
    whole = planner.plan(model, calibration)
    solve, calls = LinearProgram.solve, []

    def late(self, time_limit_s):
        calls.append(self)
        if len(calls) > 1:
            raise NoProof("no proof")
        return solve(self, time_limit_s)

    monkeypatch.setattr(LinearProgram, "solve", late)
    plan = planner.plan(model, calibration)
    assert len(calls) > 1
    assert plan.prediction.step_s >= whole.prediction.step_s
    assert planner.compare(model, calibration, plan=plan)
    with pytest.raises(RuntimeError, match="no proof"):
        planner.plan(model, calibration)


def test_heads_of_groups_gather_by_links_of_their_own_group():
    model = chain()
    calibration = calibration_of(model, [A, B, C, D], rate=1e9)
    slow = tuple(
        dataclasses.replace(link, bytes_per_s=1e3)
        if D in (link.source, link.target)
        else link
        for link in calibration.links
    )
    slower = dataclasses.replace(calibration, links=slow)
    rates = {(k.source, k.target): k.bytes_per_s for k in slow}
    assert _group_ways._rate_within(slower, (A, B)) == rates[B, A] > 1e6
    assert _group_ways._rate_within(slower, (C, D)) == 1e3


@pytest.mark.parametrize("root", (A, C, "chief"))
@pytest.mark.parametrize("count", (1, 2, 3, 4))
def test_trees_reach_everyone_by_what_has_arrived(count, root):
    devices = [A, B, C, D][:count]
    has = {d: {d} for d in [*devices, root]}
    for source, target in sum_pairs(devices, root):
        has[target] |= has.pop(source)
    assert has[root] >= set(devices)
    have = {root}
    for source, target in copy_pairs(devices, root):
        assert source in have and target not in have
        have.add(target)
    assert have == {root, *devices}


def test_trees_are_as_deep_as_a_logarithm():
    """Sixteen devices: the root takes part in four messages each way."""
    devices = [f"d{i}" for i in range(16)]
    for pairs in (sum_pairs(devices, "d0"), copy_pairs(devices, "d0")):
        assert len(pairs) == 15
        assert sum("d0" in pair for pair in pairs) == 4


def test_simulate_shows_all_ways(tmp_path):
    path = tmp_path / "model.keras"
    residual().save(path)
    words = [f"--model={path}", "--devices=3xcpu:1GFLOPS", "--link=100Mbit"]
    table = CliRunner().invoke(command, words, env={"COLUMNS": "120"})
    assert table.exit_code == 0
    for text in ("Ways to train", "SyncEASGD of groups: cpu:0 + cpu:2"):
        assert text in table.stdout
    found = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    model = keras.saving.load_model(path)
    calibration = planner.described(model, "3xcpu:1GFLOPS", "100Mbit")
    expected = [w.to_dict() for w in planner.compare(model, calibration)]
    assert found["ways"] == json.loads(json.dumps(expected))
