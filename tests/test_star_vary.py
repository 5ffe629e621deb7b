"""Calibrations of what was not measured, made from others."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tf_convpar.papers import star_simulation
from tf_convpar.papers.star_simulation import convolutions_s
from tf_convpar.papers.star_simulation import describe
from tf_convpar.papers.star_simulation import simulate
from tf_convpar.planner import Link
from tf_convpar.planner import with_devices
from tf_convpar.planner.star import network

SMALL = network((12, 24), batch=4, image=(12, 12, 3), window=3)


def cluster(devices="4xcpu:1GFLOPS", link="inf", latency="0", **kwargs):
    return describe(SMALL, devices, link, latency, **kwargs)


def test_copies_of_the_last_device():
    few = cluster("cpu:1GFLOPS,2xgpu:2GFLOPS", "1Gbit", "0.1ms", rest=0.01)
    many = cluster("cpu:1GFLOPS,5xgpu:2GFLOPS", "1Gbit", "0.1ms", rest=0.01)
    grown = with_devices(few, 6)
    assert grown.devices == many.devices
    assert set(grown.links) == set(many.links)
    assert with_devices(many, 3).links == few.links
    assert with_devices(many, 1).links == ()
    measured = dataclasses.replace(few, facts={})
    names = [d.name for d in with_devices(measured, 4).devices]
    assert names == ["cpu:0", "gpu:0", "gpu:1", "gpu:1 (copy 1)"]


def with_links(calibration, *rates, latency=0.0):
    """To each worker and back, at these rates; each later than the last."""
    chief, *others = [device.name for device in calibration.devices]
    ends = [e for o in others for e in ((chief, o), (o, chief))]
    links = [
        Link(*end, rate, latency * (i + 1))
        for i, (end, rate) in enumerate(zip(ends, rates, strict=True))
    ]
    return dataclasses.replace(calibration, links=tuple(links))


def test_copies_have_the_links_of_the_last_device():
    two = with_links(cluster("2xcpu:1GFLOPS"), 1e6, 2e6, latency=1e-3)
    grown = with_devices(two, 3)
    there = grown.link("cpu:0", "cpu:2")
    back = grown.link("cpu:2", "cpu:0")
    assert (there.bytes_per_s, there.latency_s) == (1e6, 1e-3)
    assert (back.bytes_per_s, back.latency_s) == (2e6, 2e-3)


@pytest.mark.parametrize("slow", range(4))
def test_the_best_single_device_has_the_best_links(slow):
    """Of devices that compute alike, whatever link is slow."""
    rates = [1e7] * 4
    rates[slow] = 1e5
    calibration = with_links(cluster("cpu:1MFLOPS,2xgpu:1TFLOPS"), *rates)
    (row,) = simulate(calibration, "devices", [3]).rows
    assert row.single == f"gpu:{1 - slow // 2}"


def test_the_best_single_device_has_the_best_updates():
    calibration = cluster("cpu:1MFLOPS,2xgpu:1TFLOPS")
    chief, first, second = calibration.devices
    slow = dataclasses.replace(first, update_s=1.0)
    calibration = dataclasses.replace(
        calibration, devices=(chief, slow, second)
    )
    (row,) = simulate(calibration, "devices", [3]).rows
    assert row.single == "gpu:1"


@settings(max_examples=20, deadline=None)
@given(st.floats(1, 16), st.integers(2, 5))
def test_unequal_devices_are_as_fast_in_all(ratio, devices):
    equal = cluster(f"{devices}xcpu:1GFLOPS@10W", idle=0.3)
    spread = star_simulation.with_spread(equal, ratio)
    times = [convolutions_s(spread, d) for d in spread.devices]
    speeds = [convolutions_s(equal, equal.chief) / t for t in times]
    assert sum(speeds) == pytest.approx(devices)
    assert speeds[0] / speeds[-1] == pytest.approx(ratio)
    steps = [b / a for a, b in zip(speeds, speeds[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    watts = [d.watts for d in spread.devices]
    assert watts == pytest.approx([10 * speed for speed in speeds])
    waiting = [d.idle_watts for d in spread.devices]
    assert waiting == pytest.approx([0.3 * w for w in watts])
    assert spread.rest_s == equal.rest_s


def test_another_power():
    device = cluster("cpu:1GFLOPS@10W", idle=0.3).chief
    changed = star_simulation.with_watts(device, 20.0)
    assert (changed.watts, changed.idle_watts) == (20.0, 6.0)
    unknown = cluster("cpu:1GFLOPS", idle=0.3).chief
    assert star_simulation.with_watts(unknown, 20.0).idle_watts == 0


def test_another_batch_changes_neither_updates_nor_latency():
    calibration = cluster(latency="1ms", rest=0.5)
    calibration = dataclasses.replace(
        calibration,
        devices=tuple(
            dataclasses.replace(device, update_s=1e-6)
            for device in calibration.devices
        ),
    )
    changed = star_simulation.with_batch(calibration, 8)
    assert changed.rest_s == 1.0
    assert changed.links == calibration.links
    assert {device.update_s for device in changed.devices} == {1e-6}
