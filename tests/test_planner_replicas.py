"""Steps of replicas, from numbers that can be added up by hand.

A layer of a thousand times a thousand weights: a vector of 4 MB, which takes
0.1 s at 40 MB/s. A sample takes 10 ms forward and 20 ms backward, going over
the weights once 10 ms.
"""

import dataclasses
import math

import keras
import pytest

from tf_convpar import planner
from tf_convpar.placement import BLOCK
from tf_convpar.placement import exchange_messages
from tf_convpar.placement import gradient_pieces
from tf_convpar.placement import piece_sizes
from tf_convpar.planner import Calibration
from tf_convpar.planner import Link
from tf_convpar.planner import MeasuredDevice
from tf_convpar.planner import Work
from tf_convpar.planner import link_of
from tf_convpar.planner import work_keys
from tf_convpar.replicas.all_reduce import AllReduce
from tf_convpar.replicas.wire import wire_of
from tf_convpar.sharding import calls_of

RATE, LATENCY = 40e6, 1e-3
VECTOR, UPDATE = 4e6, 0.01
BATCH = 20


def network(width=1000, normalized=False, layers=1):
    x = y = keras.Input((1, 1, width))
    for _ in range(layers):
        y = keras.layers.Conv2D(width, 1, use_bias=False)(y)
    if normalized:
        # Without weights of its own.
        y = keras.layers.BatchNormalization(center=False, scale=False)(y)
    return keras.Model(x, y)


def cluster(model, speeds=(1.0, 1.0), rate=RATE, latency=LATENCY, **costs):
    graph = calls_of(model)
    names = [f"cpu:{i}" for i in range(len(speeds))]

    def works(speed):
        found = {}
        for call in graph.calls:
            own = 0.0 if "batch" in call.name else 10 / speed
            key = work_keys.key(graph, call)
            found[key] = Work((1000,), (own,), (2 * own,))
        return found

    return Calibration(
        work_keys.fingerprint(graph),
        BATCH,
        tuple(
            MeasuredDevice(name, works(speed), UPDATE / 1e6, **costs)
            for name, speed in zip(names, speeds, strict=True)
        ),
        tuple(
            Link(a, b, rate, latency) for a in names for b in names if a != b
        ),
    )


def way_of(name, calibration, model=None, **methods):
    given = model or network()
    (way,) = planner.compare(given, calibration, ways=[name], **methods)
    return way


def test_gradients_are_exchanged_in_pieces():
    model = network()
    way = way_of("SyncSGD", cluster(model), model)
    assert way.batches == (10, 10)
    # Half of the vector each way, twice; each steps its half.
    assert way.received_bytes == VECTOR
    # A layer's gradient is there at once: nothing is hidden.
    expected = 0.3 + 2 * (LATENCY + 0.05) + 0.5 * UPDATE
    assert way.step_s == pytest.approx(expected)
    assert way.samples_per_s == pytest.approx(20 / expected)


@pytest.mark.parametrize(
    ("wire", "part"), [("bfloat16", 1 / 2), ("int8", 65 / 256)]
)
def test_gradients_and_weights_travel_in_few_bits(wire, part):
    model = network()
    way = way_of("SyncSGD", cluster(model), model, wire=wire)
    assert way.received_bytes == pytest.approx(part * VECTOR, rel=1e-3)
    # Coding takes as long as an update of all weights.
    expected = 0.3 + 2 * (LATENCY + part * 0.05) + 1.5 * UPDATE
    assert way.step_s == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("rate", (160e6, 20e6))
def test_all_but_the_last_piece_travels_in_the_backward_pass(rate):
    """32 MB: 0.1 s each way that the last layer hides, or 0.8 s."""
    model = network(2000, layers=2)
    calibration = cluster(model, rate=rate, byte_s=1e-9, message_s=1e-3)
    way = way_of("SyncSGD", calibration, model)
    vector = 32e6
    pieces, owners = gradient_pieces([4 * 10**6] * 2, 4, ["cpu:0", "cpu:1"])
    assert pieces == [4 * 10**6] * 2
    assert set(owners) == {"cpu:0", "cpu:1"}
    exchange = vector / rate
    # In and out, of each half twice, in one message beside the last.
    held = 0.5 * (1e-9 * 2 * vector + 4 * 1e-3)
    hidden = max(0.4 + held, 0.5 * exchange)
    assert (hidden > 0.4 + held) == (rate == 20e6)
    expected = 0.2 + hidden + 2 * LATENCY + 0.5 * exchange
    assert way.step_s == pytest.approx(expected + 4 * UPDATE)


@pytest.mark.parametrize(
    ("exchange", "last", "expected"), [(0.8, 0.1, 3.1), (5.0, 0.1, 6.0)]
)
def test_a_step_beside_which_gradients_travel(exchange, last, expected):
    found = planner.beside_backward(1.0, 2.0, exchange, last)
    assert found == pytest.approx(expected)


def test_faster_replicas_have_more_samples():
    model = network()
    calibration = cluster(model, (1.0, 0.6, 0.4))
    way = way_of("SyncSGD", calibration, model)
    assert way.batches == (10, 6, 4)
    # Each adds a third, which comes from two others and goes back to them.
    assert way.received_bytes == pytest.approx(4 / 3 * VECTOR, rel=1e-3)
    exchange = 2 * LATENCY + way.received_bytes / RATE
    expected = 0.3 + exchange + UPDATE / 3
    assert way.step_s == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ("SyncSGD", "SyncEASGD", "DiLoCo"))
def test_who_would_hold_up_all_is_left_out(name):
    model = network()
    way = way_of(name, cluster(model, (1.0, 1.0, 0.01)), model)
    assert way.groups == (("cpu:0",), ("cpu:1",))
    assert way.batches == (10, 10)
    with_all = way_of("AsyncSGD", cluster(model, (1.0, 1.0, 0.01)), model)
    assert len(with_all.groups) == 3


@pytest.mark.parametrize("wire", ("float32", "bfloat16", "int8", "int4"))
@pytest.mark.parametrize("fragments", (1, 5))
def test_rounds_take_their_steps_and_what_they_send(wire, fragments):
    model = network()
    calibration = cluster(model, (1.0, 0.5, 0.5), rate=4e6)
    way = way_of(
        "DiLoCo", calibration, model, every=10, fragments=fragments, wire=wire
    )
    blocks = math.ceil(1e6 / fragments / BLOCK)
    bits = {"float32": 32, "bfloat16": 16, "int8": 8.125, "int4": 4.125}[wire]
    piece = math.ceil(blocks / 3) * BLOCK * bits / 8
    # Two pieces in to be added, and two of the sums.
    travels = 2 * (LATENCY + 2 * piece / 4e6)
    # Equal shares would be 10, 5, 5.
    assert way.batches == (10, 5, 5)
    learns = 10 / fragments * (0.3 + UPDATE)
    # To code and decode goes over the weights once more.
    passes = (4 if wire == "float32" else 5) * blocks * BLOCK / 1e6 * UPDATE
    if fragments == 1:
        expected = learns + travels + passes
    else:
        expected = max(learns, travels) + passes
    assert way.step_s == pytest.approx(expected * fragments / 10, rel=2e-3)
    assert way.received_bytes == pytest.approx(
        4 * piece * fragments / 10, rel=2e-3
    )


def test_fragments_that_take_longer_than_steps_are_waited_for():
    model = network()
    calibration = cluster(model, rate=4e5)
    way = way_of("DiLoCo", calibration, model, every=10, fragments=5)
    travels = 2 * LATENCY + VECTOR / 5 / 4e5
    assert travels > 2 * (0.3 + UPDATE)
    assert way.step_s == pytest.approx((travels + 0.8 * UPDATE) / 2, rel=2e-3)


def test_pieces_go_to_those_who_add_them():
    devices, owners = ["a", "b", "c"], ["a", "b", "c", "b"]
    there, back = exchange_messages(devices, owners, [1, 2, 3, 4])
    assert there["a", "b"] == there["c", "b"] == 6
    assert back["b", "a"] == back["b", "c"] == 6
    assert len(there) == len(back) == 6


@pytest.mark.parametrize("wire", ("float32", "bfloat16", "int8", "int4"))
@pytest.mark.parametrize("count", (2, 3, 4))
def test_bytes_are_those_of_the_exchange_that_runs(wire, count):
    model = network()
    calibration = cluster(model, (1.0,) * count)
    way = way_of("DiLoCo", calibration, model, every=1, fragments=1, wire=wire)
    values = math.ceil(1e6 / BLOCK) * BLOCK
    names = [device.name for device in calibration.devices]
    reduce = AllReduce(names, values, wire_of(wire))
    sent = [reduce.nbytes(i) for i in range(count)]
    # What all send is what all receive, within a block a piece.
    assert way.received_bytes == pytest.approx(max(sent), rel=2e-3)
    pieces = reduce.sizes
    assert pieces == piece_sizes(values, count, BLOCK)


def test_a_centre_serves_who_arrives():
    """The first has the centre: nothing of it travels."""
    model = network()
    way = way_of("AsyncSGD", cluster(model), model)
    assert way.batches == (10, 10)
    # Gradient, weights that are taken, the message, the centre's step, the
    # answer.
    other = 1 / (0.3 + UPDATE + 2 * (LATENCY + 0.1) + UPDATE)
    own = (1 - other * UPDATE) / (0.3 + 2 * UPDATE)
    assert way.samples_per_s == pytest.approx(10 * (own + other))
    assert way.received_bytes == pytest.approx(
        VECTOR * other * way.step_s, 1e-6
    )


def test_elastic_replicas_go_over_their_weights_once_more():
    model = network()
    way = way_of("AsyncEASGD", cluster(model), model)
    other = 1 / (0.3 + 3 * UPDATE + 2 * (LATENCY + 0.1))
    own = (1 - other * UPDATE) / (0.3 + 3 * UPDATE)
    assert way.samples_per_s == pytest.approx(10 * (own + other))


def test_the_centres_interface_is_all_that_others_have():
    """Four others, whose messages take 4 s each: one in 4 s arrives."""
    model = network()
    calibration = cluster(model, (1.0,) * 5, rate=1e6, latency=0.0)
    way = way_of("AsyncSGD", calibration, model)
    assert way.batches == (4,) * 5
    own = (1 - UPDATE / 4) / (0.12 + 2 * UPDATE)
    assert way.samples_per_s == pytest.approx(4 * (own + 1 / 4))


def test_what_is_pushed_is_more_than_what_is_fetched():
    model = network()
    calibration = cluster(model, (1.0,) * 5, rate=1e5, latency=0.0)
    way = way_of("DownpourSGD", calibration, model, n_push=1, n_fetch=4)
    own = (1 - UPDATE / 40) / (0.12 + 3 * UPDATE)
    assert way.samples_per_s == pytest.approx(4 * (own + 1 / 40))


def test_who_pushes_seldom_waits_seldom():
    model = network()
    given = {"n_push": 5, "n_fetch": 10}
    way = way_of("DownpourSGD", cluster(model), model, **given)
    cycle = 5 * (0.3 + 2 * UPDATE) + UPDATE
    other = 1 / (cycle + 1.5 * (LATENCY + 0.1))
    own = (1 - other * UPDATE) / cycle
    assert way.samples_per_s == pytest.approx(5 * 10 * (own + other))


def test_whose_numbers_a_way_gives():
    plain, normalized = network(), network(normalized=True)
    for model, expected in ((plain, "one device"), (normalized, "own moments")):
        ways = planner.compare(model, cluster(model, rate=1e12))
        numbers = {way.name: way.numbers for way in ways}
        assert numbers.pop("SyncSGD") == expected
        assert numbers.pop("alone") == "one device"
        assert numbers.pop("split") == "one device"
        assert set(numbers.values()) == {"own steps"}
        assert set(numbers) == {
            "SyncEASGD", "AsyncSGD", "AsyncEASGD", "DownpourSGD", "DiLoCo",
        }  # fmt: skip
    own = planner.compare(
        normalized,
        cluster(normalized, rate=1e12),
        moments="own",
        ways=["split"],
    )
    assert [way.numbers for way in own] == ["own moments"]


def test_all_ways_have_the_same_samples():
    model = network()
    ways = planner.compare(model, cluster(model, (1.0, 0.7, 0.5, 0.4)))
    assert {sum(way.batches) for way in ways} == {BATCH}
    assert "2 groups" in {way.name for way in ways}
    rates = [way.samples_per_s for way in ways]
    assert rates == sorted(rates, reverse=True)


def test_fewer_samples_than_replicas():
    model = network()
    few = dataclasses.replace(cluster(model, (1.0,) * 3), batch=2)
    names = {way.name for way in planner.compare(model, few)}
    assert "alone" in names
    assert "SyncSGD" not in names


def test_advice_names_the_fastest_of_each_kind():
    model = network(normalized=True)
    ways = planner.compare(model, cluster(model, rate=1e9))
    text = planner.advice(ways)
    for way in ("SyncSGD", "DiLoCo"):
        assert f"{way} of replicas: cpu:0, cpu:1 is the fastest" in text
    assert text.count("is the fastest") == 3
    # Who is slower than what gives better numbers is not recommended.
    slow = planner.compare(model, cluster(model, rate=1e4))
    text = planner.advice([w for w in slow if w.method != "DiLoCo"])
    assert "SyncSGD" not in text


def test_machines_like_the_first():
    model = network()
    found = planner.machines(
        cluster(model, (2.0, 1.0), byte_s=1e-9), [1, 0.5], 1e6, 0.002
    )
    first, second = found.devices
    key = next(iter(first.works))
    assert first.works[key].at("forward", 10) == pytest.approx(0.05)
    assert second.works[key].at("forward", 10) == pytest.approx(0.1)
    assert second.byte_s == pytest.approx(2e-9)
    there = link_of(found.links, first.name, second.name)
    back = link_of(found.links, second.name, first.name)
    assert there.bytes_per_s == 1e6
    assert back.latency_s == 0.002
    with pytest.raises(ValueError, match="a speed above 0.*0.5, 0"):
        planner.machines(found, [0.5, 0], 1e6, 0.0)


def test_each_way_at_each_rate():
    model = network()
    calibration = cluster(model)
    found = planner.sweep_ways(model, calibration, values=[1e4, 1e6, 1e9])
    for row in found.rows:
        links = tuple(
            dataclasses.replace(link, bytes_per_s=row.value)
            for link in calibration.links
        )
        changed = dataclasses.replace(calibration, links=links)
        assert row.ways == planner.compare(model, changed)
    slowest, slow, fast = found.to_dict()["rows"]
    assert slow["samples_per_s"]["SyncSGD"] < fast["samples_per_s"]["SyncSGD"]
    assert slow["fastest"] == "DiLoCo"
    assert slowest["fastest"] == "alone"
    assert "split" not in slowest["samples_per_s"]
    # By whose numbers they give, then in one order.
    assert list(found.names)[:3] == ["alone", "split", "SyncSGD"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ways": ["SyncSDG"]}, "ways among alone.*'SyncSDG'"),
        ({"ways": []}, "ways among alone.*none"),
        ({"every": 0}, "at least 1. Received: every=0, fragments=1"),
        ({"every": 5, "fragments": 2}, "every=5, fragments=2"),
        ({"wire": "int2"}, "'int2'"),
        ({"n_push": 2, "n_fetch": 3}, "n_fetch=3, n_push=2"),
        ({"n_push": 0}, "n_push=0"),
    ],
)
def test_what_cannot_be_compared(given, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        planner.compare(model, cluster(model), **given)
    with pytest.raises(ValueError, match=message):
        planner.sweep_ways(model, cluster(model), **given)


def test_a_calibration_of_another_model():
    with pytest.raises(ValueError, match="Received one of another model"):
        planner.compare(network(900), cluster(network()), ways=["DiLoCo"])
