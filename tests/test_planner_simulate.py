"""Whole models on devices that nobody has."""

import math

import keras
import pytest
from plans_of_graphs import MODELS
from plans_of_graphs import calibration_of
from test_planner_model import names

import tf_convpar as convpar
from tf_convpar import planner
from tf_convpar.planner import Costs
from tf_convpar.planner import balancing
from tf_convpar.planner import described as described_as
from tf_convpar.planner import descriptions
from tf_convpar.planner import plan_of
from tf_convpar.planner import simulate
from tf_convpar.planner import solver
from tf_convpar.planner import step
from tf_convpar.planner.linear_program import NoSolution
from tf_convpar.sharding import calls_of

L = keras.layers


def described(model, devices="cpu:1GFLOPS", batch=4):
    graph = calls_of(model)
    given = descriptions.devices(devices)
    return graph, planner.describe(graph, given, 1e9, 1e-4, batch)


def of_one_layer(layer, image=(10, 8, 6)):
    x = keras.Input(image)
    return keras.Model(x, layer(x))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (lambda: L.Conv2D(4, 3), 8 * 6 * 3 * 3 * 6 * 4),
        (
            lambda: L.Conv2D(4, (3, 1), strides=2, padding="same"),
            5 * 4 * 3 * 6 * 4,
        ),
        (lambda: L.Conv2D(4, 3, groups=2), 8 * 6 * 3 * 3 * 3 * 4),
        (lambda: L.DepthwiseConv2D(3), 8 * 6 * 3 * 3 * 6),
        (
            lambda: L.SeparableConv2D(4, 3, depth_multiplier=2),
            8 * 6 * (3 * 3 * 6 * 2 + 12 * 4),
        ),
        # Each pixel of the input is spread over 2x2 others.
        (lambda: L.Conv2DTranspose(4, 2, strides=2), 10 * 8 * 2 * 2 * 6 * 4),
        (lambda: L.Dense(5), 10 * 8 * 6 * 5),
    ],
)
def test_multiplications(layer, expected):
    graph = calls_of(of_one_layer(layer()))
    (call,) = graph.calls
    assert planner.multiplications(graph, call) == expected


def test_multiplications_of_channels_first():
    layer = L.Conv2D(4, 3, data_format="channels_first")
    graph = calls_of(of_one_layer(layer, (6, 10, 8)))
    (call,) = graph.calls
    found = planner.multiplications(graph, call)
    assert found == 8 * 6 * 3 * 3 * 6 * 4


def test_multiplications_of_a_known_model():
    """VGG16 has 15.5 thousand million: Simonyan and Zisserman's, as cited."""
    graph = calls_of(keras.applications.VGG16(weights=None))
    found = sum(
        planner.multiplications(graph, call)
        for call in graph.calls
        if call.splits or isinstance(call.layer, L.Dense)
    )
    assert found / 1e9 == pytest.approx(15.47, rel=0.005)


def test_a_step_on_one_device():
    """Three passes of a layer, but two of the first; and bytes of others."""
    x = keras.Input((8, 8, 3))
    y = L.Conv2D(4, 3, padding="same", use_bias=False)(x)
    y = L.ReLU()(y)
    y = L.Conv2D(2, 1, use_bias=False)(y)
    graph, found = described(keras.Model(x, y), "cpu:1GFLOPS", batch=4)
    first, second = 8 * 8 * 27 * 4, 8 * 8 * 4 * 2
    maps = 4 * 8 * 8 * 4
    seconds = 4 * 2 * (2 * first + 3 * second) / 1e9
    # Forward in and out; backward in, out, and in again. Ten operations each.
    seconds += 4 * 10 * 5 * maps / 1e9
    seconds += 10 * 12 * (27 * 4 + 4 * 2) / 1e9
    assert balancing.alone(graph, found)["cpu:0"] == pytest.approx(seconds)
    plan = planner.plan_graph(graph, found)
    assert plan.prediction.step_s == pytest.approx(seconds)


def test_what_only_says_how_numbers_are_read_takes_no_time():
    x = keras.Input((8, 8, 3))
    y = L.Flatten()(L.Conv2D(4, 3)(x))
    graph = calls_of(keras.Model(x, y))
    assert planner.operations(graph, graph.calls[-1]) == (0, 0)


def test_faster_devices_get_more_and_are_called_by_number():
    plan = simulate(
        MODELS["chain"](), "2xcpu:1GFLOPS,gpu:2GFLOPS", "inf", "0", 16
    )
    assert plan.devices == ("cpu:0", "cpu:1", "gpu:0")
    # Of 16 kernels or samples, whichever of them are cut.
    assert plan.allocation["conv2d_1"] == (4, 4, 8)
    assert plan.way("conv2d_1") != "chief"
    # Of 2, but for the Dense layer's update, and for waiting.
    _, single = plan.best_single
    assert 1.7 < single / plan.prediction.step_s < 2


def test_slow_links_leave_it_whole():
    plan = simulate(MODELS["chain"](), "2xcpu:1GFLOPS", "1kbit")
    assert plan.used == ("cpu:0",)
    assert plan.prediction.sent_bytes == {}
    assert plan.reason.startswith("Not split")


def test_nobody_waits_for_moments_of_own_samples():
    """Where messages are slow, what does not wait for them is split."""
    x = y = keras.Input((16, 16, 3))
    for _ in range(8):
        y = L.BatchNormalization()(L.Conv2D(16, 3, padding="same")(y))
    model = keras.Model(x, y)
    cluster = "2xcpu:1GFLOPS", "1GB", "1ms"
    plan = simulate(model, *cluster, moments="own")
    assert set(plan.splits.values()) == {"samples"}
    waiting = plan_of(model, described_as(model, *cluster), plan)
    # Eight rows, and eight of their gradients, of a millisecond each.
    assert waiting.prediction.step_s > plan.prediction.step_s + 15.9e-3
    with pytest.raises(ValueError, match="moments='both'"):
        simulate(model, moments="both")


def test_what_is_hardly_faster_leaves_it_whole():
    """At the step of one device, which waits for nobody."""
    model = MODELS["chain"]()
    graph = calls_of(model)
    given = descriptions.devices("2xcpu:1GFLOPS")
    low, high = 1e3, 1e9
    for _ in range(30):
        rate = math.sqrt(low * high)
        found = planner.describe(graph, given, rate, 0, 16)
        alone = balancing.alone(graph, found)["cpu:0"]
        *_, cut = balancing.cuts(graph, found)
        costs = Costs(graph, found, cut)
        split_s = step.step_s(costs, solver.choose(costs))
        if split_s > 0.99 * alone:
            low = rate
        else:
            high = rate
    assert split_s == pytest.approx(0.99 * alone, rel=0.005)
    plan = planner.plan_graph(graph, found)
    assert plan.used == ("cpu:0",)
    assert plan.prediction.step_s == pytest.approx(alone)
    assert "with the best split" in plan.reason


def test_it_is_public():
    assert convpar.simulate is simulate


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cpu",), "Expected a rate, as in cpu:100GFLOPS"),
        (("cpu:1GFLOPS", "0"), "links that carry something"),
        (("cpu:1GFLOPS", "1Gbit", "5"), "Expected a time"),
        (("cpu:1GFLOPS", "1Gbit", "0", 0), "at least one sample. Received: 0"),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(MODELS["chain"](), *arguments)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rate", [3e5, 1e7])
def test_what_is_known_leaves_out_nothing_better(name, rate):
    """The best of all cuts, each proven by itself."""
    model = MODELS[name]()
    graph = calls_of(model)
    calibration = calibration_of(
        model, names(3), rate=rate, speeds=[0.8, 1.0, 0.5]
    )
    seconds = []
    for cut in balancing.cuts(graph, calibration):
        costs = Costs(graph, calibration, cut)
        choice = solver.choose(costs)
        seconds.append(step.step_s(costs, choice))
        again = solver.choose(costs, below=1.001 * seconds[-1])
        assert step.step_s(costs, again) == pytest.approx(seconds[-1])
        with pytest.raises(NoSolution):
            solver.choose(costs, below=0.999 * seconds[-1])
    alone = balancing.alone(graph, calibration)[names(3)[0]]
    step_s = planner.plan_graph(graph, calibration).prediction.step_s
    best = min(seconds)
    assert step_s == pytest.approx(best if best < 0.98 * alone else alone)


def sweep(over, values, **kwargs):
    given = {"devices": "2xcpu:1GFLOPS,gpu:2GFLOPS", "batch_size": 16} | kwargs
    return planner.sweep(MODELS["chain"](), over, values, **given).rows


def test_sweep_over_devices():
    rows = sweep("devices", [1, 3, 4], link="100Gbit", latency="0")
    assert [row.plan.devices for row in rows] == [
        ("cpu:0",),
        ("cpu:0", "cpu:1", "gpu:0"),
        ("cpu:0", "cpu:1", "gpu:0", "gpu:1"),
    ]
    assert rows[0].speedup == 1
    assert rows[0].ways == {"chief": 3}
    assert rows[0].received_bytes == 0
    assert rows[2].step_s < rows[1].step_s < rows[0].step_s
    assert sum(rows[2].ways.values()) == 3
    assert "chief" not in rows[2].ways
    single = rows[2].plan.best_single
    assert rows[2].speedup == single[1] / rows[2].step_s > 1.5
    sent = rows[2].plan.prediction.sent_bytes
    assert rows[2].received_bytes == max(
        sum(n for link, n in sent.items() if link.endswith(f" -> {name}"))
        for name in rows[2].plan.devices
    )


def test_sweep_over_bandwidth():
    rows = sweep("bandwidth", [1e4, 1e7, math.inf])
    assert [row.label for row in rows] == ["80kbit", "80Mbit", "inf"]
    assert rows[0].step_s > rows[1].step_s > rows[2].step_s
    assert [row.to_dict()["value"] for row in rows] == [1e4, 1e7, "inf"]


def test_sweep_over_batch():
    rows = sweep("batch", [4, 32], link="inf", latency="0")
    single, more = (row.plan.best_single[1] for row in rows)
    assert 6 < more / single < 7.9  # An update is one, whatever the batch.


@pytest.mark.parametrize(
    ("over", "values", "message"),
    [
        ("kernels", None, "one of devices, bandwidth, batch"),
        ("devices", [0], "at least one device. Received: 0"),
        ("bandwidth", [], "Expected values of bandwidth"),
    ],
)
def test_sweeps_that_cannot_be(over, values, message):
    with pytest.raises(ValueError, match=message):
        sweep(over, values)
