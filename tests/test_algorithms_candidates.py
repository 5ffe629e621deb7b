"""Which algorithms are worth measuring, and which may be chosen."""

import dataclasses

import pytest
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import INPUT_GRADIENT
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Bilinear
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Processor
from tf_convpar.algorithms import candidates
from tf_convpar.algorithms import fft
from tf_convpar.algorithms import named
from tf_convpar.algorithms import race
from tf_convpar.algorithms import winograd

CPU = "/device:CPU:0"
GEOMETRY = Geometry((28, 28), 64, 64, window=(3, 3), padding="same", batch=8)
GEOMETRIES = [
    GEOMETRY,
    Geometry((14, 14), 500, 1500, window=(5, 5), batch=64),
    Geometry((56, 56), 32, 32, window=(11, 11), batch=4),
    # Transforms take more than they save.
    Geometry((28, 28), 1, 2, window=(3, 3), batch=64),
    Geometry((40,), 64, 64, window=(7,), batch=8),
    Geometry((10, 10, 10), 32, 32, window=(3, 3, 3), batch=2),
]


def names(geometry, which=FORWARD):
    found = candidates.candidates(geometry, which)
    return [algorithm.name for algorithm in found]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_cheapest_tiles_of_each_kind(geometry):
    """By what they cost, at most three, and none far from the cheapest."""
    for which in PASSES:

        def cost(algorithm, which=which):
            return candidates._cost(algorithm, geometry, which)

        tiles = {"winograd": winograd.tiles, "fft": fft.tiles}
        every = {
            kind: sorted(cost(Bilinear(kind, tile)) for tile in find(geometry))
            for kind, find in tiles.items()
        }
        cheapest = min(costs[0] for costs in every.values() if costs)
        limit = min(2 * cheapest, 0.8 * geometry.multiplications)
        found = candidates.candidates(geometry, which)
        if every["winograd"] and every["fft"] > every["winograd"]:
            # Complex products do not win there.
            every["fft"] = []
        for kind, costs in every.items():
            assert [cost(a) for a in found if a.name.startswith(kind)] == [
                c for c in costs[:3] if c <= limit
            ]


def test_not_every_tile_is_a_candidate():
    """Each of the limits above is reached."""
    # Further from the cheapest than twice, though cheaper than direct.
    assert len(names(GEOMETRIES[1])) < 3
    assert len(fft.tiles(GEOMETRIES[2])) > len(names(GEOMETRIES[2])) == 3
    assert names(GEOMETRIES[3]) == ["gemm"]


def test_widths_that_race_as_one():
    widths = {n: candidates.width(n) for n in range(65, 2049)}
    # Vectors and columns that are not full are measured as they are.
    assert all(n == near for n, near in widths.items() if n % 16)
    shared = {n: near for n, near in widths.items() if n % 16 == 0}
    assert all(0.8 <= n / near <= 1.25 for n, near in shared.items())
    assert sorted(set(shared.values())) == [
        *(64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
    ]
    assert [candidates.width(n) for n in (3, 24, 64)] == [3, 24, 64]


def test_errors_are_measured_once_for_the_same_windows(monkeypatch):
    """Unless sums are so much longer that the limit may be near."""
    measured = []
    inner = race.relative_errors

    def errors(algorithms, geometry, which, device):
        measured.append([a.name for a in algorithms])
        return inner(algorithms, geometry, which, device)

    monkeypatch.setattr("tf_convpar.algorithms.race.relative_errors", errors)
    monkeypatch.setattr("tf_convpar.algorithms.candidates._measured", {})

    def screened(geometry, which=FORWARD):
        measured.clear()
        algorithms = [
            named(name, geometry) for name in ("direct", "winograd:4", "fft:6")
        ]
        found = candidates.screened(algorithms, geometry, which, CPU)
        assert all(0 < c.error < 1e-5 for c in found)
        return [name for names in measured for name in names]

    every = ["direct", "winograd:4", "fft:6"]
    assert screened(GEOMETRY) == every
    wider = dataclasses.replace(GEOMETRY, channels=96, image=(20, 20))
    assert screened(wider) == []
    assert screened(GEOMETRY, INPUT_GRADIENT) == every
    assert screened(dataclasses.replace(GEOMETRY, window=(2, 2))) == every
    # As if the error that was measured had been a third of the limit.
    key = next(k for k in candidates._measured if "winograd:4" in k)
    length = candidates._measured[key][1]
    candidates._measured[key] = candidates.LARGEST_ERROR / 3, length
    longer = dataclasses.replace(GEOMETRY, channels=256)
    assert screened(longer) == ["direct", "winograd:4"]


def test_what_caches_do_not_hold_costs_time():
    small = dataclasses.replace(GEOMETRY, batch=1, channels=8, filters=8)
    large = dataclasses.replace(GEOMETRY, channels=512, filters=512)
    tiles = Bilinear("winograd", (4, 4))
    for geometry, costs_more in ((small, False), (large, True)):
        count = tiles.multiplications(geometry, FORWARD)
        cost = candidates._cost(tiles, geometry, FORWARD)
        assert (cost > count) is costs_more
        # It is a part of the work, not most of it.
        assert cost < 2 * count


@pytest.mark.parametrize(
    ("changes", "pays"),
    [
        ({}, False),
        ({"channels": 16}, True),
        ({"channels": 17}, False),
        ({"image": (8, 8)}, True),
        ({"image": (8, 9)}, False),
        ({"channels": 3, "strides": (2, 2)}, False),
        ({"window": (1, 1)}, True),
        ({"window": (1, 1), "strides": (2, 2)}, True),
        ({"window": (1, 1), "dilation": (2, 2)}, False),
    ],
)
def test_where_a_matrix_product_may_pay(changes, pays):
    geometry = dataclasses.replace(GEOMETRY, **changes)
    assert ("gemm" in names(geometry)) is pays


def test_candidates_compute_the_pass():
    geometry = dataclasses.replace(GEOMETRY, window=(1, 1), strides=(2, 2))
    assert names(geometry) == ["gemm"]
    assert names(geometry, INPUT_GRADIENT) == []


def test_the_workspace_that_is_allowed(monkeypatch):
    monkeypatch.delenv(candidates.WORKSPACE, raising=False)
    assert candidates.workspace_cap() == 2 * 2**30
    monkeypatch.setenv(candidates.WORKSPACE, "3")
    assert candidates.workspace_cap() == 3 * 2**20
    tiles = Bilinear("winograd", (4, 4))
    for cap, dropped in (
        (tiles.workspace(GEOMETRY, FORWARD), None),
        (tiles.workspace(GEOMETRY, FORWARD) - 1, "workspace over"),
    ):
        monkeypatch.setattr(
            "tf_convpar.algorithms.candidates.workspace_cap",
            lambda cap=cap: cap,
        )
        _, found = candidates.screened(
            [named("direct", GEOMETRY), tiles], GEOMETRY, FORWARD, CPU
        )
        assert (found.dropped or "")[:14] == (dropped or "")
        assert (found.error is None) is (dropped is not None)


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
def test_the_workspace_is_that_on_the_device(monkeypatch):
    tiles = Bilinear("winograd", (4, 4))
    cap = tiles.workspace(GEOMETRY, FORWARD)
    monkeypatch.setattr(
        "tf_convpar.algorithms.candidates.workspace_cap", lambda: cap
    )
    asked = []

    def many(device):
        asked.append(device)
        return Processor(threads=1000)

    monkeypatch.setattr("tf_convpar.algorithms.processor.processor_of", many)
    _, found = candidates.screened(
        [named("direct", GEOMETRY), tiles], GEOMETRY, FORWARD, CPU
    )
    assert asked == [CPU]
    assert found.workspace_bytes > cap
    assert found.dropped.startswith("workspace over")


class Broken(type(named("direct", GEOMETRY))):
    name = "broken"

    def forward(self, x, kernel, geometry):
        return super().forward(x, kernel, geometry) * float("nan")


def test_a_result_that_is_no_number_is_no_candidate():
    direct = named("direct", GEOMETRY)
    _, bad = candidates.screened([direct, Broken()], GEOMETRY, FORWARD, CPU)
    assert bad.dropped == "error over 0.0001"


def test_direct_is_never_dropped(monkeypatch):
    """Its error is that of float32, beside float64."""
    monkeypatch.setattr("tf_convpar.algorithms.candidates.LARGEST_ERROR", 0.0)
    found = candidates.screened(
        [named("direct", GEOMETRY), named("gemm", GEOMETRY)],
        GEOMETRY,
        FORWARD,
        CPU,
    )
    assert [candidate.dropped for candidate in found] == [
        None,
        "error over 0",
    ]
    assert all(1e-9 < candidate.error < 1e-5 for candidate in found)


class Failing(type(named("direct", GEOMETRY))):
    def forward(self, x, kernel, geometry):
        tf.debugging.assert_equal(x, 0.0)


def test_where_direct_fails_there_is_nothing_to_compare():
    with pytest.raises(tf.errors.InvalidArgumentError):
        race.relative_errors([Failing()], GEOMETRY, FORWARD, CPU)


@pytest.mark.parametrize(
    ("dtype", "judged"),
    [("float64",) * 2, ("float32",) * 2, ("bfloat16", "float32")],
)
@pytest.mark.parametrize("which", PASSES)
def test_errors_are_judged_in_the_dtype_of_sums(which, dtype, judged):
    geometry = dataclasses.replace(GEOMETRY, dtype=dtype)
    assert race.sample(geometry, which).dtype == judged
