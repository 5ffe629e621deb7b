"""Plans of whole models: the best of all, and of what really runs."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
from cases import but_slow
from cases import by_turns
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar.planner import Costs
from tf_convpar.planner import balancing
from tf_convpar.planner import solver
from tf_convpar.planner import step
from tf_convpar.planner import work_keys
from tf_convpar.planner.call_ways import CHIEF
from tf_convpar.planner.call_ways import Settings
from tf_convpar.planner.call_ways import filters_of
from tf_convpar.sharding import calls_of
from tf_convpar.sharding import step_traffic


def names(number):
    first = "/job:chief/replica:0/task:0/device:CPU:0"
    others = [
        f"/job:worker/replica:0/task:{i}/device:CPU:0"
        for i in range(number - 1)
    ]
    return [first, *others]


def choices(costs):
    """All that there are."""
    ways = {}
    for i, call in enumerate(costs.graph.calls):
        if call.splits:
            ways[call.name] = list(costs.ways.of[i])
    for given in itertools.product(*ways.values()):
        yield dict(zip(ways, given, strict=True))


RATES = (1e5, 3e5, 1e6, 1e7)
CASES = list(itertools.product(MODELS, RATES, range(3)))
# Each model on each number of devices, and at each rate.
QUICK = [
    (name, rate, (i + j) % 3)
    for i, name in enumerate(MODELS)
    for j, rate in enumerate(RATES)
]


@pytest.mark.parametrize(("name", "rate", "seed"), but_slow(CASES, QUICK))
def test_nothing_is_better_than_the_plan(name, rate, seed):
    model = MODELS[name]()
    graph = calls_of(model)
    devices = names(2 + seed % 2)
    speeds = [1.0, 0.7, 1.4][: len(devices)]
    calibration = calibration_of(
        model, devices, seed=seed, rate=rate, speeds=speeds
    )
    for cut in balancing.cuts(graph, calibration):
        costs = Costs(graph, calibration, cut)
        found = step.step_s(costs, solver.choose(costs))
        best = min(step.step_s(costs, c) for c in choices(costs))
        assert found == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "settings"),
    by_turns(
        [*MODELS], [Settings(), Settings("bfloat16"), Settings(moments="own")]
    ),
    ids=str,
)
def test_what_is_planned_to_move_is_what_moves(name, settings, strategy):
    """Of many plans the bytes of each link are those of the model made."""
    model = MODELS[name]()
    graph = calls_of(model)
    calibration = calibration_of(
        model, strategy.devices, speeds=[1.0, 0.5, 2.0], rate=1e6
    )
    *_, cut = balancing.cuts(graph, calibration, settings)
    costs = Costs(graph, calibration, cut)
    every = list(choices(costs))
    rng = np.random.default_rng(1)
    for i in rng.choice(len(every), min(6, len(every)), replace=False):
        prediction = step.predict(costs, every[i])
        plan = {
            layer: {"split": way, "shards": _shards(costs, layer, way)}
            if way != "chief"
            else None
            for layer, way in every[i].items()
        }
        with strategy.scope():
            parallel = convpar.parallelize(model, plan, **vars(settings))
        links = step_traffic(parallel, calibration.batch).links
        moved = {f"{a} -> {b}": n for (a, b), n in links.items()}
        assert moved == prediction.sent_bytes, every[i]


def test_weights_are_as_many_messages_as_there_are_packs():
    """Of 2.4 MB, which come in packs of up to 2 MB, or in pieces."""
    x = y = keras.Input((8, 8, 64))
    for _ in range(16):
        y = keras.layers.Conv2D(64, 3, padding="same", use_bias=False)(y)
    model = keras.Model(x, y)
    graph = calls_of(model)
    calibration = calibration_of(model, names(2), rate=1e9)

    def seconds(message_s):
        devices = [
            dataclasses.replace(device, byte_s=0.0, message_s=message_s)
            for device in calibration.devices
        ]
        own = dataclasses.replace(calibration, devices=tuple(devices))
        *_, cut = balancing.cuts(graph, own)
        costs = Costs(graph, own, cut)
        return sum(
            max(cost["samples"].forward)
            for cost in costs.of
            if "samples" in cost
        )

    # Each device sends one and is sent one.
    packs = 16 * 9 * 64 * 64 * 4 / 2**21
    assert seconds(1.0) - seconds(0.0) == pytest.approx(2 * packs)


def _shards(costs, layer, way):
    if way == "samples":
        return costs.cut.shares
    calls = {call.name: call for call in costs.graph.convolutions}
    return costs.cut.counts[filters_of(costs.graph, calls[layer])]


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_of_the_planner_can_be_run(name, strategy):
    """Results are those of the model, and files are read as written."""
    model = MODELS[name]()
    calibration = calibration_of(
        model, strategy.devices, speeds=[1.0, 0.5, 0.8], rate=3e6
    )
    plan = planner.plan(model, calibration)
    with strategy.scope():
        parallel = convpar.parallelize(model, plan)
    x = np.random.default_rng(0).normal(size=(12, 8, 8, 3)).astype("float32")
    for a, b in zip(
        keras.tree.flatten(model(x)),
        keras.tree.flatten(parallel(x)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    model = MODELS["chain"]()
    calibration = calibration_of(model, names(2), seed=1, rate=3e6)
    plan = planner.plan(model, calibration)
    assert set(plan.splits.values()) == {"samples", "filters"}
    plan.save(tmp_path / "plan.json")
    again = convpar.plans.load(tmp_path / "plan.json")
    assert again == plan
    assert dict(again) == dict(plan)
    calibration.save(tmp_path / "cluster.json")
    assert convpar.plan(model, tmp_path / "cluster.json") == plan


def test_slow_links_leave_a_model_whole():
    model = MODELS["chain"]()
    calibration = calibration_of(model, names(3), rate=1e3)
    plan = planner.plan(model, calibration)
    assert plan.used == (names(3)[0],)
    assert plan.reason.startswith("Not split: ")
    assert plan.prediction.sent_bytes == {}
    alone = plan.single_s[names(3)[0]]
    assert plan.prediction.step_s == pytest.approx(alone, rel=1e-9)


def test_a_fast_worker_gets_all_where_that_is_best():
    model = MODELS["chain"]()
    speeds = [0.05, 1.0]
    calibration = calibration_of(model, names(2), rate=3e6, speeds=speeds)
    plan = planner.plan(model, calibration)
    convolutions = list(plan.allocation.values())
    assert all(shards[0] == 0 for shards in convolutions[:2])


def test_equal_layers_are_one_work():
    x = keras.Input((8, 8, 8))
    y = x
    for i in range(5):
        y = keras.layers.Conv2D(8, 3, padding="same", name=f"c{i}")(y)
    graph = calls_of(keras.Model(x, y))
    keys = [work_keys.key(graph, call) for call in graph.calls]
    # Of the first the input's gradient is not asked for.
    assert len(set(keys)) == 2
    assert keys[1] == keys[4]


@pytest.mark.parametrize("quantum", [1, 8])
def test_things_are_given_out_so_that_all_end_together(quantum):
    speeds = [1.0, 0.6, 0.4, None]
    given = balancing.balanced(
        200,
        [s and (lambda n, s=s: n / s) for s in speeds],
        quantum,
    )
    assert sum(given) == 200
    assert given[3] == 0
    for count, part in zip(given, (100, 60, 40), strict=False):
        assert abs(count - part) <= quantum


def test_times_are_asked_for_once():
    """And not of all devices for each thing that is given out."""
    asked = []
    balancing.balanced(100, [lambda n: asked.append(n) or n] * 5)
    assert len(asked) == 100 + 5


def test_weights_of_a_layer_at_two_places_are_stored_and_updated_once():
    x = keras.Input((4, 4, 256))
    layer = keras.layers.Conv2D(256, 3, padding="same")
    model = keras.Model(x, layer(layer(x)))
    calibration = planner.described(
        model, "2xcpu:100GFLOPS", "1kbit", batch_size=1
    )
    plan = planner.plan(model, calibration)
    alone = plan.single_s[calibration.devices[0].name]
    assert plan.prediction.step_s == pytest.approx(alone, rel=1e-9)
    graph = calls_of(model)
    cut = balancing.unsplit(graph, calibration)
    stored = sum(c[CHIEF].memory[0] for c in Costs(graph, calibration, cut).of)
    assert stored == pytest.approx(
        2 * 4 * 4 * 256 * 4 + 4 * (2 + calibration.slots) * layer.count_params()
    )


@pytest.mark.timeout(60)
def test_batches_that_nobody_has_take_no_longer():
    """As of a file that was edited: so many are not given out one by one."""
    number = 10**15
    given = balancing.balanced(number, [lambda n: n / 3.0, lambda n: n / 1.0])
    assert sum(given) == number
    assert given[0] / number == pytest.approx(0.75, abs=1e-3)
    model = MODELS["chain"]()
    calibration = calibration_of(model, names(2))
    devices = [
        dataclasses.replace(device, memory_bytes=2**40)
        for device in calibration.devices
    ]
    calibration = dataclasses.replace(
        calibration, batch=number, devices=tuple(devices)
    )
    with pytest.raises(ValueError, match=f"at batch {number}.*smaller batch"):
        planner.plan(model, calibration)


def test_a_profile_of_another_model_is_refused():
    calibration = calibration_of(MODELS["chain"](), names(2))
    with pytest.raises(ValueError, match="another model"):
        planner.plan(MODELS["residual"](), calibration)


def test_a_model_without_a_graph_is_refused():
    class Own(keras.Model):
        pass

    with pytest.raises(ValueError, match="Sequential or functional"):
        calls_of(Own())


def test_a_model_for_any_size_is_refused():
    x = keras.Input((None, None, 3))
    with pytest.raises(ValueError, match="known size"):
        calls_of(keras.Model(x, keras.layers.Conv2D(4, 3)(x)))


def test_no_device_is_given_more_than_it_can_hold():
    """With less memory a device gets less, and none fits nowhere."""
    model = MODELS["chain"]()
    free = calibration_of(model, names(2), rate=1e7)

    def limited(chief, worker):
        limits = zip(free.devices, (chief, worker), strict=True)
        devices = (dataclasses.replace(d, memory_bytes=n) for d, n in limits)
        return dataclasses.replace(free, devices=tuple(devices))

    graph = calls_of(model)
    (*_, cut) = balancing.cuts(graph, free)
    costs = Costs(graph, free, cut)

    def needed(choice):
        named, _ = step.follow(costs, choice)
        rows = [
            cost[name].memory
            for cost, name in zip(costs.of, named, strict=True)
            if cost[name].memory
        ]
        return [sum(column) for column in zip(*rows, strict=True)]

    alone = needed(dict.fromkeys(solver.choose(costs), "chief"))[0]
    plan = planner.plan(model, limited(0.8 * alone, None))
    assert len(plan.used) == 2
    assert names(2)[0] not in plan.single_s
    choice = solver.choose(Costs(graph, limited(0.8 * alone, None), cut))
    assert needed(choice)[0] <= 0.8 * alone
    with pytest.raises(ValueError, match="memory for a training step"):
        planner.plan(model, limited(0.1 * alone, 0.1 * alone))
