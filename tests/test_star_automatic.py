"""Strategies that are given a plan, or make one layer by layer."""

import json

import keras
import numpy as np
import pytest

import tf_convpar as convpar
from tf_convpar.planner import star as planner
from tf_convpar.planner.measure import cache
from tf_convpar.strategy import strategy as strategy_lib

pytestmark = pytest.mark.usefixtures("little_time")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "cache"))


def devices(plan):
    return convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"], plan=plan)


def network(**kwargs):
    return keras.Sequential(
        [
            keras.Input((20, 20, 8)),
            convpar.ConvParallel2D(48, 3, name="first", **kwargs),
            convpar.ConvParallel2D(64, 3, name="second", **kwargs),
        ]
    )


@pytest.mark.slow  # test_planner_auto.py, too.
def test_layers_are_planned_when_they_are_built(tmp_path):
    strategy = devices("auto")
    with strategy.scope():
        model = network()
    for layer, filters in zip(model.layers, (48, 64), strict=True):
        counts = strategy.plan[layer.name]
        assert sum(counts) == filters and len(counts) == 2
        held = tuple(n for n in counts if n)
        sizes = layer._layout.sizes if layer._layout else (filters,)
        assert sizes == held
    kept = list((tmp_path / "cache" / "stars").iterdir())
    assert len(kept) == 2
    # What was measured once is read from there: by another strategy as well.
    before = {file: file.stat().st_mtime_ns for file in kept}
    again = devices("auto")
    with again.scope():
        network()
    assert again.plan == strategy.plan
    assert before == {file: file.stat().st_mtime_ns for file in kept}


@pytest.mark.slow  # test_planner_auto.py has it of the graph.
def test_layers_that_differ_share_no_measurements(tmp_path):
    """What travels, and whether there are biases, is part of a layer."""
    for wire, use_bias in ((None, True), ("bfloat16", True), (None, False)):
        strategy = convpar.ConvParallelStrategy(
            devices=["CPU:0", "CPU:1"], plan="auto", wire_dtype=wire
        )
        with strategy.scope():
            layer = convpar.ConvParallel2D(16, 3, use_bias=use_bias)
            layer.build((None, 9, 9, 3))
    kept = [
        planner.load(file).network
        for file in (tmp_path / "cache" / "stars").iterdir()
    ]
    assert sorted(
        (network.wire_bytes, network.convolutions[0].bias) for network in kept
    ) == [(2, True), (4, False), (4, True)]


def test_the_plan_is_that_of_the_measurements(tmp_path, monkeypatch):
    """A device that is said to be slow gets nothing."""
    strategy = devices("auto")
    with strategy.scope():
        network()
    files = sorted((tmp_path / "cache" / "stars").iterdir())
    for file in files:
        content = json.loads(file.read_text())
        for times in content["devices"][1]["times"].values():
            for which in ("forward", "input_gradient", "kernel_gradient"):
                times[which] = [1e3 for _ in times[which]]
        file.write_text(json.dumps(content))
    again = devices("auto")
    with again.scope():
        model = network()
    assert again.plan == {"first": (48, 0), "second": (64, 0)}
    assert not any(layer.is_sharded for layer in model.layers)


def test_shards_of_a_layer_go_first(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("measured")

    monkeypatch.setattr(
        "tf_convpar.planner.star._by_layer.calibrate_graph", never
    )
    strategy = devices("auto")
    with strategy.scope():
        model = network(shards=(3, 1))
    assert model.layers[0]._layout.sizes == (36, 12)
    assert not strategy.plan


@pytest.mark.slow
def test_weights_are_drawn_as_without_a_plan():
    drawn = []
    for plan in (None, "auto"):
        keras.utils.set_random_seed(1)
        with devices(plan).scope():
            for channels in (8, 16):  # The second is made when one is built.
                layer = convpar.ConvParallel2D(16, 3, activation=str)
                layer.build((None, 20, 20, channels))
                drawn.append(layer.get_weights())
    for once, again in zip(drawn[:2], drawn[2:], strict=True):
        np.testing.assert_array_equal(once[0], again[0])


@pytest.mark.parametrize(
    ("shape", "kwargs"),
    [((None, None, 8), {}), ((20, 20, 8), {"groups": 2})],
    ids=["unknown size", "groups"],
)
def test_what_cannot_be_measured_is_shared_equally(shape, kwargs):
    strategy = devices("auto")
    with strategy.scope(), pytest.warns(match="cannot be measured"):
        layer = convpar.ConvParallel2D(32, 3, **kwargs)
        layer.build((None, *shape))
    assert layer._layout.sizes == (16, 16)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TF_CONVPAR_CACHE", str(tmp_path / "file"))
    strategy = devices("auto")
    with (
        strategy.scope(),
        pytest.warns(RuntimeWarning, match="Could not write"),
    ):
        layer = convpar.ConvParallel2D(32, 3)
        layer.build((None, 20, 20, 8))
    assert layer.name in strategy.plan


@pytest.mark.slow  # test_planner_measure.py, too.
def test_a_spoilt_file_of_the_cache_is_measured_again(tmp_path):
    with devices("auto").scope():
        network()
    for file in (tmp_path / "cache" / "stars").iterdir():
        file.write_text("{")
    strategy = devices("auto")
    with strategy.scope():
        network()
    for file in (tmp_path / "cache" / "stars").iterdir():
        assert cache.find(file, planner.load) is not None


@pytest.mark.slow
def test_a_plan_and_its_file(tmp_path):
    strategy = devices(None)
    with strategy.scope():
        model = network()
        model.compile("sgd", "mse", jit_compile=False)
    calibration = planner.calibrate(model, strategy, 4)
    plan = planner.plan(calibration, quantum=1)
    edited = {"first": (40, 8), "second": (1, 63)}
    plan = planner.plan_of(calibration, edited)
    plan.save(tmp_path / "plan.json")
    x = np.random.default_rng(0).normal(size=(2, 20, 20, 8))
    results = []
    for given in (plan, str(tmp_path / "plan.json"), tmp_path / "plan.json"):
        keras.utils.set_random_seed(1)
        with devices(given).scope():
            other = network()
        assert [layer._layout.sizes for layer in other.layers] == [
            (40, 8),
            (1, 63),
        ]
        results.append(other.predict(x, verbose=0))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_strategy_that_was_imported_without_the_planner(monkeypatch):
    """As modules of the command line may; a plan of counts needs none."""
    monkeypatch.setattr(strategy_lib, "_plans_layers", None)
    with pytest.raises(RuntimeError, match="Expected the planner"):
        devices("auto")
    assert devices({"first": (40, 8)}).plan == {"first": (40, 8)}


@pytest.mark.parametrize("plan", [3, ["first"]])
def test_plans_that_are_none(plan):
    with pytest.raises(ValueError, match="Expected `plan`.*Received"):
        devices(plan)
