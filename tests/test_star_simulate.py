"""Steps on clusters that nobody has, against what can be worked out."""

import csv
import dataclasses
import io
import math

import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from rich.console import Console

from tf_convpar.papers import star_simulation
from tf_convpar.papers.star_simulation import SWEEPS
from tf_convpar.papers.star_simulation import VALUES
from tf_convpar.papers.star_simulation import convolutions_s
from tf_convpar.papers.star_simulation import describe
from tf_convpar.papers.star_simulation import simulate
from tf_convpar.planner import star
from tf_convpar.planner import with_bandwidth
from tf_convpar.planner.star import network
from tf_convpar.planner.star import predict

# 12 and 24 kernels: equal parts for up to four devices, and for six.
SMALL = network((12, 24), batch=4, image=(12, 12, 3), window=3)


def cluster(devices="4xcpu:1GFLOPS", link="inf", latency="0", **kwargs):
    return describe(SMALL, devices, link, latency, **kwargs)


@pytest.mark.parametrize("share", [0.6, 0.9, 1.0])
def test_equal_devices_without_links_follow_amdahls_law(share):
    rows = simulate(
        cluster("6xcpu:1GFLOPS", conv_share=share), "devices", [1, 2, 3, 4, 6]
    ).rows
    for n, row in zip((1, 2, 3, 4, 6), rows, strict=True):
        law = 1 / (1 - share + share / n)
        assert row.speedup == pytest.approx(law, rel=1e-9)
        assert row.ideal == pytest.approx(law, rel=1e-9)
        assert row.speedup_of_best == pytest.approx(law, rel=1e-9)
        assert row.efficiency == pytest.approx(law / n, rel=1e-9)
        assert (row.used, row.devices, row.capacity) == (n, n, n)
        assert row.equal_s == pytest.approx(row.step_s)


def test_papers_figures_by_amdahls_law():
    """What share of convolutions 3.28x and 2.45x need at the least."""
    for devices, share, speedup in ((4, 0.927, 3.28), (3, 0.888, 2.45)):
        row = simulate(
            cluster(f"{devices}xcpu:1GFLOPS", conv_share=share),
            "devices",
            [devices],
        ).rows[0]
        assert row.speedup == pytest.approx(speedup, abs=0.01)


@pytest.mark.parametrize("bandwidth", [0, 1.0])
def test_without_bandwidth_nothing_is_split(bandwidth):
    (row,) = simulate(cluster(), "bandwidth", [bandwidth]).rows
    assert row.speedup == 1
    assert (row.used, row.sent_bytes, row.busiest_link) == (1, 0, "")
    assert row.busiest_device == "cpu:0"
    assert row.device_busy == pytest.approx(1)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(0.1, 10), min_size=2, max_size=4),
    st.floats(1e3, 1e9),
    st.floats(0, 1e-3),
    st.floats(0.3, 1),
)
def test_more_bandwidth_is_never_slower(speeds, rate, latency, share):
    devices = ",".join(f"cpu:{s:.3f}GFLOPS" for s in speeds)
    calibration = cluster(devices, latency=f"{latency:.9f}s", conv_share=share)
    rows = simulate(calibration, "bandwidth", [rate, 2 * rate, 4 * rate]).rows
    for slow, fast in zip(rows, rows[1:], strict=False):
        assert fast.step_s <= slow.step_s * (1 + 1e-9)
    for row in rows:
        assert row.step_s <= row.single_s * (1 + 1e-9)
        assert row.step_s <= row.equal_s * (1 + 1e-9)
        assert row.speedup <= row.ideal * (1 + 1e-9)
        assert 0 <= row.link_busy <= 1


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.floats(1e5, 1e9))
def test_more_devices_are_never_slower(devices, rate):
    calibration = with_bandwidth(cluster(), rate)
    few, more = simulate(calibration, "devices", [devices, devices + 1]).rows
    assert more.step_s <= few.step_s * (1 + 1e-9)


def test_energy_of_one_device():
    (row,) = simulate(cluster("cpu:1GFLOPS@65W"), "devices", [1]).rows
    assert row.joules == pytest.approx(65 * row.step_s)
    assert row.joules_by_device == {"cpu:0": pytest.approx(65 * row.step_s)}


def test_energy_of_devices_that_wait():
    """Of two, one waits while the other does the rest of the network."""
    (row,) = simulate(
        cluster("2xcpu:1GFLOPS@10W", conv_share=0.5, idle=0.3), "devices", [2]
    ).rows
    chief, other = row.joules_by_device.values()
    assert chief == pytest.approx(10 * row.step_s)
    # Half of the time on the rest, a quarter each on convolutions: of three
    # quarters the other computes one.
    assert other == pytest.approx(row.step_s * (10 / 3 + 3 * 2 / 3))
    assert row.joules == pytest.approx(chief + other)
    assert row.busiest_device == "cpu:0"


def test_energy_is_unknown_where_a_power_is():
    (row,) = simulate(
        cluster("cpu:1GFLOPS@65W,gpu:1GFLOPS"), "devices", [2]
    ).rows
    assert row.joules is None
    assert list(row.joules_by_device) == ["cpu:0"]


def test_steps_are_proportional_to_the_batch():
    calibration = cluster(link="100Mbit")
    one, four = simulate(calibration, "batch", [4, 16]).rows
    assert four.step_s == pytest.approx(4 * one.step_s)
    assert four.sent_bytes == 4 * one.sent_bytes
    assert four.speedup == pytest.approx(one.speedup)
    again = describe(
        dataclasses.replace(SMALL, batch=16), "4xcpu:1GFLOPS", "100Mbit", "0"
    )
    assert four.step_s == pytest.approx(
        simulate(again, "devices", [4]).rows[0].step_s
    )


def test_latency_is_felt_less_by_large_batches():
    calibration = cluster(link="1Gbit", latency="1ms")
    speedups = [
        row.speedup for row in simulate(calibration, "batch", [4, 40, 400]).rows
    ]
    assert speedups == sorted(speedups)
    assert speedups[0] < speedups[-1]


def test_other_kernels_are_another_description():
    calibration = cluster(link="1Gbit", rest=0.01)
    changed = star_simulation.with_kernels(calibration, (6, 30))
    other = network((6, 30), batch=4, image=(12, 12, 3), window=3)
    assert changed.network == other
    again = describe(other, "4xcpu:1GFLOPS", "1Gbit", "0", rest=0.01)
    for a, b in zip(changed.devices, again.devices, strict=True):
        for name in a.times:
            for which in ("forward", "input_gradient", "kernel_gradient"):
                assert getattr(a.times[name], which) == pytest.approx(
                    getattr(b.times[name], which)
                )
    # The rest follows the feature maps: 100 and 9 pixels of them.
    assert changed.rest_s == pytest.approx(
        0.01 * (6 * 100 + 30 * 9) / (12 * 100 + 24 * 9)
    )


def test_larger_networks_gain_more():
    calibration = cluster(link="1Gbit", latency="0.1ms")
    speedups = [
        row.speedup
        for row in simulate(
            calibration, "kernels", [(12, 24), (24, 48), (48, 96)]
        ).rows
    ]
    assert speedups == sorted(speedups)
    assert speedups[-1] > speedups[0]


def test_measured_devices_say_nothing_of_other_kernels():
    measured = dataclasses.replace(cluster(), facts={"tensorflow": "2.21"})
    with pytest.raises(ValueError, match="Expected described devices"):
        simulate(measured, "kernels", [(6, 30)])
    assert simulate(measured, "devices", [2]).rows[0].used == 2


def test_what_measuring_gains():
    rows = simulate(cluster(), "heterogeneity", [1, 2, 8]).rows
    assert rows[0].gain == pytest.approx(1)
    assert 1 < rows[1].gain < rows[2].gain
    # An equal split waits for the slowest: 8 times as slow as the fastest.
    calibration = star_simulation.with_spread(cluster(), 8)
    slowest = convolutions_s(calibration, calibration.devices[-1])
    assert rows[2].equal_s == pytest.approx(
        calibration.rest_s + slowest / 4, rel=1e-6
    )


def test_the_best_single_device():
    row = simulate(
        cluster("cpu:1GFLOPS,2xgpu:50GFLOPS", "10Gbit"), "devices", [3]
    ).rows[0]
    assert row.single == "gpu:0"
    assert row.step_s <= row.single_s < row.chief_s
    assert row.speedup > row.speedup_of_best >= 1
    assert row.capacity == pytest.approx(101)
    assert row.efficiency == pytest.approx(row.speedup / 101)
    small = cluster("cpu:1GFLOPS,2xgpu:50GFLOPS", "10Gbit")
    small = dataclasses.replace(
        small,
        devices=(
            small.devices[0],
            dataclasses.replace(small.devices[1], memory_bytes=1000),
            dataclasses.replace(small.devices[2], memory_bytes=10**9),
        ),
    )
    assert simulate(small, "devices", [3]).rows[0].single == "gpu:1"


def test_steps_are_those_of_the_plan():
    calibration = cluster("cpu:1GFLOPS,gpu:3GFLOPS", "1Gbit", "0.1ms")
    from tf_convpar.planner.star import allocate

    expected = predict(calibration, allocate(calibration))
    (row,) = simulate(calibration, "devices", [2]).rows
    assert row.step_s == expected.step_s
    assert row.sent_bytes == sum(expected.sent_bytes.values())
    assert row.link_busy == pytest.approx(
        expected.busy()[row.busiest_link] / expected.step_s
    )
    (coarse,) = simulate(calibration, "devices", [2], quantum=12).rows
    halves = allocate(calibration, 12)
    assert coarse.step_s == predict(calibration, halves).step_s
    assert coarse.step_s > row.step_s


def test_a_calibration_file_gives_the_same(tmp_path):
    calibration = cluster(link="1Gbit", latency="0.1ms")
    calibration.save(tmp_path / "cluster.json")
    loaded = star.load(tmp_path / "cluster.json")
    for sweep, values in (("devices", [4, 6]), ("kernels", [(6, 30)])):
        assert (
            simulate(loaded, sweep, values).rows
            == simulate(calibration, sweep, values).rows
        )


def test_sixty_four_devices():
    calibration = cluster("64xcpu:1GFLOPS", "10Gbit", "10us")
    (row,) = simulate(calibration, "devices", [64]).rows
    assert 1 < row.speedup <= row.ideal
    assert row.used <= 24


@pytest.mark.parametrize(
    "sweep, value, message",
    [
        ("colour", 1, "sweep over one of devices, bandwidth"),
        ("devices", 0, "at least one device"),
        ("devices", 1.5, "Expected whole devices. Received: 1.5"),
        ("bandwidth", -1, "at least 0. Received: -1"),
        ("bandwidth", math.nan, "at least 0"),
        ("batch", 0, "at least one image"),
        ("kernels", (1, 2, 3), "each of the 2 convolutions"),
        ("kernels", 5, "each of the 2 convolutions"),
        ("devices", (1, 2), "Expected a number of devices"),
        ("devices", math.inf, "Expected whole devices"),
        ("heterogeneity", math.inf, "at least 1, of two or more devices"),
        ("heterogeneity", 0.5, "at least 1, of two or more devices"),
    ],
)
def test_impossible_values(sweep, value, message):
    with pytest.raises(ValueError, match=message):
        simulate(cluster(), sweep, [value])


def test_one_device_cannot_be_copied():
    with pytest.raises(ValueError, match="two or more devices, to know"):
        simulate(cluster("cpu:1GFLOPS"), "devices", [2])


def found():
    calibration = cluster("2xcpu:1GFLOPS@10W,gpu:4GFLOPS@20W", "1Gbit", "0.1ms")
    return simulate(calibration, "devices", [1, 3])


def test_csv(tmp_path):
    simulation = found()
    simulation.csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert len(rows) == 2
    for row, expected in zip(rows, simulation.rows, strict=True):
        assert int(row["value"]) == expected.value
        assert float(row["step_s"]) == expected.step_s
        assert float(row["speedup"]) == expected.speedup
        assert float(row["joules"]) == expected.joules
        assert row["busiest_device"] == expected.busiest_device
        for name, joules in expected.joules_by_device.items():
            assert float(row[f"joules {name}"]) == joules
    assert rows[0]["joules gpu:0"] == ""


def test_a_failed_write_leaves_what_was_there(tmp_path):
    target = tmp_path / "rows.csv"
    target.write_text("before")
    simulation = found()
    broken = dataclasses.replace(simulation, rows=(*simulation.rows, None))
    with pytest.raises(AttributeError):
        broken.csv(target)
    assert target.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("sweep", SWEEPS)
def test_table_and_picture_of_each_sweep(sweep, tmp_path):
    values = VALUES[sweep][:2]
    simulation = simulate(cluster(link="1Gbit"), sweep, values)
    text = io.StringIO()
    Console(file=text, width=80).print(simulation.table())
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    for row in simulation.rows:
        assert any(
            line.split()[:1] == [row.label]
            and f"{row.speedup:.2f}" in line.split()
            for line in lines
        ), lines
    star_simulation.draw(simulation, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_plain_data_has_no_infinity():
    simulation = simulate(cluster(), "bandwidth", [math.inf])
    assert simulation.to_dict()["rows"][0]["value"] == "inf"


@given(st.floats(0.1, 0.99), st.integers(1, 64))
def test_ideal_is_amdahls_law_for_any_number(share, devices):
    from tf_convpar.papers.star_simulation import amdahl

    calibration = cluster(f"{devices}xcpu:1GFLOPS", conv_share=share)
    assume(len(calibration.devices) == devices)
    assert amdahl(calibration) == pytest.approx(
        1 / (1 - share + share / devices)
    )


def test_what_a_simulation_is_about():
    calibration = cluster(link="1Gbit")
    about = {
        sweep: simulate(calibration, sweep, VALUES[sweep][:1]).about
        for sweep in SWEEPS
    }
    assert about["devices"] == (
        "12:24 kernels, batch 4, 4xcpu:1GFLOPS, 1Gbit, 90% in convolutions"
    )
    assert about["kernels"].endswith("90% in convolutions at 12:24")
    assert "1Gbit" not in about["bandwidth"]
    assert "batch 4" not in about["batch"]
    more = simulate(calibration, "devices", [4, 5]).about
    assert "4xcpu:1GFLOPS and more like the last, 1Gbit" in more


def test_a_picture_without_a_limit(tmp_path):
    rates = [1e6, math.inf]
    found = simulate(cluster(), "bandwidth", rates)
    star_simulation.draw(found, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").stat().st_size > 1000
