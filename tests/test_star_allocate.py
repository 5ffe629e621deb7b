"""The allocation is the best of all: compared with trying all of them."""

import dataclasses
import random

import pytest
from cases import but_slow
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from star_cases import cluster
from star_cases import device_name
from star_cases import network
from star_cases import random_calibration
from star_cases import shortest
from star_cases import star_links

from tf_convpar.planner import linear_program
from tf_convpar.planner import star
from tf_convpar.planner.star import Network
from tf_convpar.planner.star import StarCalibration
from tf_convpar.planner.star import StarConvolution
from tf_convpar.planner.star import StarDevice
from tf_convpar.planner.star import Times
from tf_convpar.planner.star import allocate
from tf_convpar.planner.star import best_split


def step(calibration, counts):
    return star.predict(calibration, counts).step_s


def check_shares(calibration, counts, quantum):
    """All in units but for what one device gets."""
    for convolution in calibration.network:
        odd = [n for n in counts[convolution.name] if n % quantum]
        assert len(odd) == (convolution.filters % quantum > 0)


@pytest.mark.parametrize("seed", but_slow(range(12), range(2)))
def test_random_calibrations(seed):
    for case in range(50 * seed, 50 * seed + 50):
        calibration = random_calibration(case)
        quantum = random.Random(-case).choice([None, None, 1, 2, 3, 5])
        counts = allocate(calibration, quantum)
        check_shares(calibration, counts, quantum or calibration.quantum)
        assert step(calibration, counts) == pytest.approx(
            shortest(calibration, quantum), rel=1e-9, abs=0
        ), case


@pytest.mark.parametrize("seed", but_slow(range(4), range(2)))
def test_workers_that_differ_in_their_links_only(seed):
    """Which of them goes first must not depend on one of its links alone."""
    for case in range(40 * seed, 40 * seed + 40):
        dice = random.Random(case)
        calibration = random_calibration(case, devices=4, layers=1)
        (layer,) = calibration.network
        chief, *workers = calibration.devices
        busy = Times(
            (layer.filters,), *((dice.choice([0.1, 1.0, 9.0]),) for _ in "fik")
        )
        own = Times((layer.filters,), *((dice.uniform(0, 1),) for _ in "fik"))
        calibration = dataclasses.replace(
            calibration,
            devices=(
                dataclasses.replace(chief, times={layer.name: busy}),
                *(
                    dataclasses.replace(
                        worker, times={layer.name: own}, update_s=0.0
                    )
                    for worker in workers
                ),
            ),
            links=tuple(
                dataclasses.replace(
                    link,
                    bytes_per_s=10 ** dice.uniform(2, 5),
                    latency_s=dice.choice([0.0, 0.01, 0.1, 0.3]),
                )
                for link in calibration.links
            ),
        )
        assert step(calibration, allocate(calibration)) == pytest.approx(
            shortest(calibration), rel=1e-9, abs=0
        ), case


def with_memory(calibration, limits):
    return dataclasses.replace(
        calibration,
        devices=tuple(
            dataclasses.replace(device, memory_bytes=limit)
            for device, limit in zip(calibration.devices, limits, strict=True)
        ),
    )


@pytest.mark.parametrize("seed", but_slow(range(4), range(2)))
def test_memory_that_binds(seed):
    bound = impossible = 0
    for case in range(60 * seed, 60 * seed + 60):
        dice = random.Random(case)
        free = random_calibration(
            case,
            devices=dice.randint(1, 3),
            layers=dice.randint(1, 3),
            most_filters=6,
        )
        wanted = allocate(free)
        everything = sum(
            star.memory_bytes(free, c, c.filters) for c in free.network
        )
        calibration = with_memory(
            free,
            [
                dice.choice(
                    [
                        None,
                        # What the best needs, or a little less.
                        max(0, needed - dice.choice([0, 1, 4])),
                        int(everything * dice.uniform(0.2, 0.9)),
                    ]
                )
                for needed in star.needed_bytes(free, wanted)
            ],
        )
        best = shortest(calibration)
        if best is None:
            impossible += 1
            with pytest.raises(ValueError, match="Expected devices that hold"):
                allocate(calibration)
            continue
        counts = allocate(calibration)
        bound += not star.fits(calibration, wanted)
        assert star.fits(calibration, counts)
        assert step(calibration, counts) == pytest.approx(
            best, rel=1e-9, abs=0
        ), case
    assert bound > 5
    assert impossible > 5


def test_message_where_no_memory_suffices():
    calibration = with_memory(cluster([1e11, 1e11]), [10**6, None])
    assert allocate(calibration)["conv2d"][0] == 0
    calibration = with_memory(cluster([1e11, 1e11]), [10**6, 2 * 10**6])
    needed = sum(
        star.memory_bytes(calibration, c, c.filters)
        for c in calibration.network
    )
    with pytest.raises(ValueError) as caught:
        allocate(calibration)
    assert f"{needed} bytes at least" in str(caught.value)
    assert f"{device_name(0)} has 1000000 bytes" in str(caught.value)
    assert f"{device_name(1)} has 2000000 bytes" in str(caught.value)


@given(
    kernels=st.integers(1, 2000),
    quantum=st.sampled_from([1, 4, 8, 16, 7]),
    measured=st.sampled_from([1, 8, 16]),
    flops=st.lists(st.floats(1e9, 1e12), min_size=2, max_size=5),
    rate=st.floats(1e5, 1e11),
)
@settings(deadline=None, max_examples=40)
def test_no_other_is_found_to_be_shorter(
    kernels, quantum, measured, flops, rate
):
    layers = network((kernels, 40))
    calibration = cluster(flops, rate=rate, layers=layers, quantum=measured)
    counts = allocate(calibration, quantum)
    check_shares(calibration, counts, quantum)
    best = step(calibration, counts)
    dice = random.Random(kernels)
    for name, found in counts.items():
        for _ in range(60):  # Moves some units from one device to another.
            other = list(found)
            a, b = dice.sample(range(len(other)), 2)
            moved = quantum * dice.randint(1, 3)
            if dice.random() < 0.2:
                moved = other[a]
            if other[a] >= moved:
                other[a] -= moved
                other[b] += moved
                changed = counts | {name: tuple(other)}
                assert best <= step(calibration, changed) * (1 + 1e-9)


def test_equal_devices_share_equally():
    calibration = cluster(
        [1e11] * 4,
        rate=float("inf"),
        rest_s=0.0,
        join_s=0.0,
        transfer_s=0.0,
    )
    links = star_links(calibration.devices, float("inf"), 0.0)
    calibration = dataclasses.replace(calibration, links=links)
    assert allocate(calibration) == {
        "conv2d": (125,) * 4,
        "conv2d_1": (375,) * 4,
    }


def test_ties_are_not_split():
    layer = StarConvolution("one", (8,), (8,), 1, 8, (1,))
    times = Times((1, 8), (0.0, 0.0), (0.0, 0.0), (1.0, 1.0))
    devices = tuple(
        StarDevice(device_name(d), {"one": times}) for d in range(3)
    )
    calibration = StarCalibration(
        Network((layer,), 1),
        devices,
        star_links(devices, float("inf"), 0.0),
        0.0,
    )
    assert allocate(calibration) == {"one": (8, 0, 0)}


def test_ties_are_not_split_where_memory_binds():
    layers = tuple(
        StarConvolution(name, (8,), (8,), 1, 8, (1,)) for name in ("one", "two")
    )
    times = Times((1, 8), (0.0, 0.0), (0.0, 0.0), (1.0, 1.0))
    devices = tuple(
        StarDevice(
            device_name(d),
            {"one": times, "two": times},
            # The chief holds either, not both.
            memory_bytes=None if d == 2 else 1200,
        )
        for d in range(3)
    )
    calibration = StarCalibration(
        Network(layers, 1),
        devices,
        star_links(devices, float("inf"), 0.0),
        0.0,
    )
    assert star.memory_bytes(calibration, layers[0], 8) == 672
    assert allocate(calibration) == {"one": (0, 0, 8), "two": (0, 0, 8)}


def test_useless_devices_and_links_are_left_out():
    calibration = cluster([1e11, 1e11, 1e5])
    slow = [
        dataclasses.replace(link, bytes_per_s=10.0)
        if device_name(1) in (link.source, link.target)
        else link
        for link in calibration.links
    ]
    counts = allocate(dataclasses.replace(calibration, links=tuple(slow)))
    assert counts == {"conv2d": (500, 0, 0), "conv2d_1": (1500, 0, 0)}


def test_slow_chief_gives_its_work_away():
    counts = allocate(cluster([1e8, 1e12], rate=1e10))
    assert counts["conv2d_1"][0] < 10


@pytest.mark.parametrize("quantum", [0, -1, 2.0])
def test_bad_quantum(quantum):
    with pytest.raises(ValueError, match="at least 1. Received: quantum="):
        allocate(cluster([1e11]), quantum)


def test_quantum_larger_than_a_layer():
    counts = allocate(cluster([1e11, 1e11], rate=1e10), 1000)
    assert sorted(counts["conv2d"]) == [0, 500]
    assert sorted(counts["conv2d_1"]) == [500, 1000]


def test_one_device_only_has_the_unit_that_is_short():
    """Units of 4 and one of 2, although 2 for each would be faster."""
    layers = Network((StarConvolution("one", (8,), (8,), 1, 6, (1,)),), 1)
    calibration = cluster([1e3] * 3, rate=1e12, layers=layers)
    assert sorted(allocate(calibration, 2)["one"]) == [2, 2, 2]
    assert sorted(allocate(calibration, 4)["one"]) == [0, 2, 4]


@pytest.mark.parametrize("case", but_slow(range(60), range(20)))
def test_best_split(case):
    """Among the splits of a layer none is shorter, and it is a split."""
    calibration = random_calibration(case, layers=1, devices=3)
    alone = {"layer0": (calibration.network.convolutions[0].filters, 0, 0)}
    found = best_split(calibration, alone)
    splits = [
        step(calibration, {"layer0": counts})
        for counts in ways(calibration)
        if sum(n > 0 for n in counts) > 1
    ]
    if not splits:
        assert found is None
        return
    assert sum(n > 0 for n in found["layer0"]) > 1
    assert step(calibration, found) == pytest.approx(min(splits), rel=1e-9)


def ways(calibration):
    from star_cases import possible

    layer = calibration.network.convolutions[0]
    return possible(
        layer.filters, len(calibration.devices), calibration.quantum
    )


@pytest.mark.slow
def test_large_clusters_are_planned_at_once():
    layers = Network(
        tuple(
            StarConvolution(f"conv{i}", (14, 14), (14, 14), 256, 256, (3, 3))
            for i in range(16)
        ),
        64,
    )
    speeds = [1e11 * f for f in (1, 0.3, 0.9, 2, 1.5, 0.5, 1, 1)]
    # Fewer seconds than either is given to prove it.
    allocate(cluster(speeds, layers=layers, rate=1e9))
    calibration = cluster([1e11] * 64, rate=1.25e9)
    counts = allocate(calibration)
    assert step(calibration, counts) < step(
        calibration, {"conv2d": (500, *[0] * 63), "conv2d_1": (1500, *[0] * 63)}
    )


def test_no_proof_in_time(monkeypatch):
    monkeypatch.setattr("tf_convpar.planner.star._optimum._TIME_LIMIT_S", 0.5)
    dice = random.Random(1)
    calibration = cluster([1e11 * dice.uniform(0.5, 2) for _ in range(64)])
    noisy = dataclasses.replace(
        calibration,
        devices=tuple(
            dataclasses.replace(
                device,
                times={
                    layer: Times(
                        times.filters,
                        *(
                            tuple(t * dice.uniform(0.8, 1.2) for t in row)
                            for row in (
                                times.forward,
                                times.input_gradient,
                                times.kernel_gradient,
                            )
                        ),
                    )
                    for layer, times in device.times.items()
                },
            )
            for device in calibration.devices
        ),
        links=star_links(calibration.devices, 1.25e9),
    )
    with pytest.raises(RuntimeError, match="proven allocation within"):
        allocate(noisy)


def test_solver_prints_nothing(capfd, monkeypatch):
    """HiGHS prints a line for some programs; JSON goes to stdout."""
    import ctypes

    real = linear_program.optimize.milp

    def loud(*args, **kwargs):
        ctypes.CDLL(None).puts(b"from the solver")
        return real(*args, **kwargs)

    monkeypatch.setattr(linear_program.optimize, "milp", loud)
    allocate(cluster([1e11, 1e11], rate=1e10))
    ctypes.CDLL(None).fflush(None)
    output = capfd.readouterr()
    assert "from the solver" not in output.out
    assert "from the solver" in output.err
