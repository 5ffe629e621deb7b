"""The lemmas for the numbers of devices and of parameter servers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_convpar.papers import estimate

RATIOS = st.floats(1e-4, 10.0)

# Computed by hand from T(G) = T_C / G + T_O.
SPEEDUPS = {
    0.01: (1.98, 3.88, 7.48, 13.93, 24.48),
    0.05: (1.91, 3.50, 6.00, 9.33, 12.92),
    0.10: (1.83, 3.14, 4.89, 6.77, 8.38),
    0.20: (1.71, 2.67, 3.69, 4.57, 5.19),
}


@pytest.mark.parametrize("ratio", SPEEDUPS)
def test_worked_speedups(ratio):
    found = [estimate.speedup(2**i, ratio) for i in range(1, 6)]
    assert found == pytest.approx(SPEEDUPS[ratio], abs=0.005)


def test_worked_overheads():
    found = [estimate.overhead_for(0.8, n) for n in (2, 4, 8, 16)]
    assert found == pytest.approx([0.333, 0.091, 0.037, 0.017], abs=5e-4)


@pytest.mark.parametrize(
    ("megabytes", "gigabits", "seconds", "servers"),
    [
        (244, 10, 1.0, 4),
        (244, 10, 0.5, 7),
        (244, 1, 1.0, 32),
        (102, 10, 1.0, 2),
        (552, 10, 1.0, 8),
    ],
)
def test_worked_servers(megabytes, gigabits, seconds, servers):
    arguments = (megabytes * 1e6, 8, gigabits * 1e9 / 8, seconds)
    assert estimate.parameter_servers(*arguments) == servers
    half = estimate.parameter_servers(*arguments, full_duplex=True)
    assert half in (servers // 2, (servers + 1) // 2)


@given(st.integers(1, 5000), RATIOS)
def test_from_the_times_of_steps(devices, ratio):
    computing, overhead = 0.7, 0.7 * ratio
    expected = (computing + overhead) / (computing / devices + overhead)
    assert estimate.speedup(devices, ratio) == pytest.approx(expected)
    assert estimate.efficiency(devices, ratio) == pytest.approx(
        expected / devices
    )


@given(st.integers(1, 5000), RATIOS)
def test_devices_are_the_inverse_of_speedup(devices, ratio):
    reached = estimate.speedup(devices, ratio)
    assert estimate.devices_for(reached, ratio) == devices


@given(st.floats(1.0, 1000.0), RATIOS)
def test_the_fewest_devices(wanted, ratio):
    if wanted >= (1 - 1e-6) * (1 + ratio) / ratio:
        return
    devices = estimate.devices_for(wanted, ratio)
    assert estimate.speedup(devices, ratio) >= wanted * (1 - 1e-9)
    if devices > 1:
        assert estimate.speedup(devices - 1, ratio) < wanted


@given(st.integers(2, 5000), RATIOS)
def test_overhead_is_the_inverse_of_efficiency(devices, ratio):
    reached = estimate.efficiency(devices, ratio)
    found = estimate.overhead_for(reached, devices)
    assert found == pytest.approx(ratio, rel=1e-6)


def test_limits():
    assert estimate.speedup(64, 0.0) == 64
    assert estimate.devices_for(64.0, 0.0) == 64
    assert estimate.speedup(10**9, 0.05) == pytest.approx(21.0)
    assert estimate.overhead_for(1.0, 8) == 0
    # Half of two devices' efficiency is left by any overhead.
    assert estimate.overhead_for(0.5, 2) == math.inf


@given(
    st.floats(1.0, 1e12),
    st.integers(1, 1000),
    st.floats(1.0, 1e12),
    st.floats(1e-6, 1e3),
    st.booleans(),
)
def test_traffic_hides_behind_computation(size, workers, rate, seconds, duplex):
    servers = estimate.parameter_servers(size, workers, rate, seconds, duplex)
    traffic = (1 if duplex else 2) * size * workers / rate
    assert traffic / servers <= seconds * (1 + 1e-9)
    if servers > 1:
        assert traffic / (servers - 1) > seconds * (1 - 1e-9)


def test_a_speedup_that_nothing_reaches():
    with pytest.raises(
        ValueError, match=r"\(1 \+ R\) / R = 21, .*Received: 30"
    ):
        estimate.devices_for(30.0, 0.05)
    with pytest.raises(ValueError, match="Received: 21"):
        estimate.devices_for(21.0, 0.05)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (estimate.speedup, (0, 0.1), "`devices` .* Received: 0"),
        (estimate.speedup, (2.5, 0.1), "`devices` .* Received: 2.5"),
        (estimate.speedup, (True, 0.1), "`devices` .* Received: True"),
        (estimate.efficiency, (2, -0.1), "`overhead_ratio` .* Received: -0.1"),
        (
            estimate.efficiency,
            (2, math.nan),
            "`overhead_ratio` .* Received: nan",
        ),
        (estimate.devices_for, (0.5, 0.1), "`speedup` .* Received: 0.5"),
        (estimate.devices_for, ("6", 0.1), "`speedup` .* Received: '6'"),
        (estimate.overhead_for, (1.2, 4), "`efficiency` .* Received: 1.2"),
        (estimate.overhead_for, (0.0, 4), "`efficiency` .* Received: 0"),
        (estimate.parameter_servers, (0, 8, 1e9, 1.0), "`parameter_bytes`"),
        (estimate.parameter_servers, (1e6, 0, 1e9, 1.0), "`workers`"),
        (estimate.parameter_servers, (1e6, 8, -1.0, 1.0), "`bytes_per_s`"),
        (estimate.parameter_servers, (1e6, 8, 1e9, 0.0), "`compute_s`"),
        (estimate.parameter_servers, (1e308, 8, 1.0, 1.0), "finite"),
    ],
)
def test_what_is_refused(function, arguments, message):
    with pytest.raises(ValueError, match="Expected .*Received: ") as caught:
        function(*arguments)
    assert caught.match(message)
