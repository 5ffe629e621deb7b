"""How an algorithm is chosen, and how that is remembered."""

import dataclasses
import warnings

import choices
import pytest
import tensorflow as tf
from choices import GEOMETRY
from choices import forget
from choices import names

import tf_convpar as convpar
from tf_convpar import algorithms
from tf_convpar import ops
from tf_convpar.algorithms import FORWARD
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Choice
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import Processor
from tf_convpar.algorithms import by_measurement
from tf_convpar.algorithms import cache
from tf_convpar.algorithms import candidates
from tf_convpar.algorithms import named
from tf_convpar.algorithms.cache import Record

CPU = "/device:CPU:0"


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """And little time."""
    monkeypatch.setattr("tf_convpar.algorithms._choose._BUDGET_S", 0.1)
    yield from choices.fresh(tmp_path, monkeypatch)


@pytest.fixture
def races(monkeypatch):
    return choices.races(monkeypatch)


def test_measured_once_then_read(races, tmp_path):
    first = algorithms.choose(GEOMETRY)
    assert sorted(races) == sorted(PASSES)
    assert algorithms.choose(GEOMETRY) is first
    forget()
    assert names(algorithms.choose(GEOMETRY)) == names(first)
    assert len(races) == len(PASSES)
    forget()
    (tmp_path / "algorithms.json").unlink()
    algorithms.choose(GEOMETRY)
    assert len(races) == 2 * len(PASSES)


def test_record():
    records = algorithms.consult(GEOMETRY)
    for which in PASSES:
        record = records[which]
        direct, *others = record.candidates
        assert direct.name == "direct"
        assert direct.ratio == 1
        assert direct.error < 1e-5
        assert {c.name.partition(":")[0] for c in others} <= {
            "winograd",
            "fft",
            "gemm",
        }
        assert any(c.name.startswith("winograd:") for c in others)
        assert len([c for c in others if c.name.startswith("fft:")]) <= 3
        for candidate in record.candidates:
            assert candidate.multiplications > 0
            assert candidate.dropped or candidate.time_ms > 0
            assert candidate.dropped or candidate.error <= 1e-4
        assert record.winner.dropped is None
        assert record.chosen == "direct" or record.winner.ratio <= 0.92


def test_refresh_measures_again(races):
    algorithms.consult(GEOMETRY, passes=[FORWARD])
    algorithms.consult(GEOMETRY, passes=[FORWARD])
    assert races == [FORWARD]
    algorithms.consult(GEOMETRY, passes=[FORWARD], refresh=True)
    assert races == [FORWARD, FORWARD]


def test_unknown_batch_is_32(races):
    unknown = dataclasses.replace(GEOMETRY, batch=None)
    known = dataclasses.replace(GEOMETRY, batch=32)
    assert names(algorithms.choose(unknown)) == names(algorithms.choose(known))
    assert len(races) == len(PASSES)


@pytest.mark.parametrize(
    ("changes", "threads", "images"),
    [
        # By its work, 29 million multiplications an image.
        ({"image": (56, 56), "channels": 32, "filters": 32}, 1, 2),
        # By its pixels: tiles of all images are rows of a product.
        ({"image": (4, 4), "channels": 512, "filters": 512}, 1, 64),
        ({"image": (4, 4), "channels": 512, "filters": 512}, 3, 100),
        ({"image": (112, 112), "channels": 64, "filters": 64}, 1, 1),
        ({"image": (112, 112), "channels": 64, "filters": 64}, 3, 3),
        ({"image": (None, 112)}, 1, 100),
        # A shard without any.
        ({"filters": 0}, 1, 100),
    ],
)
def test_images_that_race(changes, threads, images, races, monkeypatch):
    monkeypatch.setattr(
        "tf_convpar.algorithms._workspace.threads", lambda: threads
    )
    large = dataclasses.replace(GEOMETRY, batch=100, **changes)
    part = algorithms.race_geometry(large)
    assert part.batch == images
    assert part == dataclasses.replace(large, batch=images)


def test_all_batches_share_a_race(races):
    large = dataclasses.replace(GEOMETRY, image=(56, 56), batch=20)
    few = algorithms.choose(large)
    raced = list(races)
    larger = dataclasses.replace(large, batch=40)
    assert algorithms.race_geometry(larger) == algorithms.race_geometry(large)
    assert names(algorithms.choose(larger)) == names(few)
    assert races == raced


def test_parts_of_a_layer_go_by_its_race(races):
    whole = dataclasses.replace(GEOMETRY, filters=128, batch=12)
    part = dataclasses.replace(whole, filters=64)
    chosen = names(algorithms.choose(whole))
    assert sorted(races) == sorted(PASSES)
    with algorithms.as_layer_of(whole.filters):
        assert names(algorithms.choose(part)) == chosen
    assert len(races) == len(PASSES)
    algorithms.choose(part)
    assert len(races) > len(PASSES)


def test_memory_is_of_all_images(monkeypatch):
    """Of a part of them an algorithm may need little."""
    large = dataclasses.replace(
        GEOMETRY, image=(56, 56), channels=4, filters=64, batch=4000
    )
    gemm = named("gemm", large)
    part = algorithms.race_geometry(large)
    cap = gemm.workspace(part, FORWARD) // 2**20 + 1
    assert gemm.workspace(large, FORWARD) > cap * 2**20
    monkeypatch.setenv(candidates.WORKSPACE, str(cap))
    monkeypatch.setattr(
        "tf_convpar.algorithms._choose.decide", lambda times, *_: "gemm"
    )
    monkeypatch.setattr(
        "tf_convpar.algorithms.candidates.candidates", lambda *_: [gemm]
    )
    assert algorithms.consult(part, passes=[FORWARD])[FORWARD].chosen == "gemm"
    assert algorithms.choose(part).forward.name == "gemm"
    assert algorithms.choose(large).forward.name == "direct"


class Sevens(type(named("gemm", GEOMETRY))):
    def forward(self, x, kernel, geometry, *args):
        maps = super().forward(x, kernel, geometry, *args)
        return tf.fill(tf.shape(maps), 7.0)


def test_memory_is_of_the_batch_that_comes(monkeypatch):
    sevens = Sevens()
    monkeypatch.setenv(candidates.WORKSPACE, "1")
    monkeypatch.setattr(
        "tf_convpar.algorithms._choose.choose",
        lambda *_: Choice(*[sevens] * len(PASSES)),
    )
    geometry = dataclasses.replace(GEOMETRY, channels=2, filters=3, batch=None)
    choice = by_measurement(geometry, CPU)
    assert names(choice) == ["gemm"] * len(PASSES)
    kernel = tf.ones((*geometry.window, 2, 3))

    @tf.function(input_signature=[tf.TensorSpec((None, *geometry.image, 2))])
    def maps(x):
        return choice.forward.forward(x, kernel, geometry)

    most = 2**20 // sevens.workspace(geometry, FORWARD)
    assert most > 32
    for batch, is_within in ((1, True), (most, True), (most + 1, False)):
        y = maps(tf.ones((batch, *geometry.image, 2)))
        assert bool(tf.reduce_all(y == 7.0)) == is_within


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
def test_memory_is_that_of_the_device(monkeypatch):
    """Each of its threads has its own."""
    record = Record("winograd:4")
    monkeypatch.setattr(
        "tf_convpar.algorithms._choose.consult",
        lambda *_: dict.fromkeys(PASSES, record),
    )
    for threads, chosen in ((2, "winograd:4"), (1_000_000, "direct")):
        processor = Processor(threads)
        monkeypatch.setattr(
            "tf_convpar.algorithms.processor.processor_of",
            lambda device, p=processor: p,
        )
        assert names(algorithms.choose(GEOMETRY)) == [chosen] * len(PASSES)
        forget()


def test_workspace_cap(monkeypatch):
    monkeypatch.setenv(candidates.WORKSPACE, "0")
    records = algorithms.consult(GEOMETRY)
    for record in records.values():
        assert record.chosen == "direct"
        for candidate in record.candidates[1:]:
            if candidate.workspace_bytes:
                assert candidate.dropped == "workspace over 0 MiB"
                assert candidate.time_ms is None


def test_bad_workspace_cap(monkeypatch):
    monkeypatch.setenv(candidates.WORKSPACE, "1 GiB")
    with pytest.raises(ValueError, match="Received: '1 GiB'"):
        algorithms.choose(GEOMETRY)


@pytest.mark.parametrize(
    ("changes", "device", "rule"),
    [
        ({}, "GPU:0", "GPU"),
        ({}, "/job:worker/task:0/device:GPU:0", "GPU"),
        ({"image": (None, 14)}, None, "unknown"),
        ({"window": (2, 2), "strides": (2, 2)}, None, "strides"),
        ({"window": (1, 1), "dilation": (2, 1)}, CPU, "dilation"),
        ({"image": (3, 3)}, "cpu:1", "small"),
    ],
)
def test_direct_by_rule(changes, device, rule, races, tmp_path):
    geometry = dataclasses.replace(GEOMETRY, **changes)
    for record in algorithms.consult(geometry, device).values():
        assert record.chosen == "direct"
        assert rule in record.rule
    assert names(algorithms.choose(geometry, device)) == ["direct"] * 3
    assert not races
    assert not list(tmp_path.iterdir())


def test_strides_and_dilation_may_be_cut_into_phases():
    dilated = dataclasses.replace(GEOMETRY, dilation=(2, 2))
    for which in PASSES:
        (found,) = candidates.candidates(dilated, which)
        assert found.name == "phases:winograd"
    strided = dataclasses.replace(GEOMETRY, strides=(2, 2))
    found = [candidates.candidates(strided, which) for which in PASSES]
    assert [[a.name for a in some] for some in found] == [
        *([], []),
        ["phases:winograd"],
    ]


@pytest.mark.skipif(not ops.load(), reason="no compiled ops")
def test_dilation_is_computed_in_phases(races):
    """Twice as fast, by far."""
    geometry = Geometry(
        (14, 14), 256, 256, (3, 3), dilation=(2, 2), padding="same", batch=8
    )
    assert names(algorithms.choose(geometry)) == ["phases:winograd"] * 3


def test_strided_1x1_may_be_a_matrix_product():
    geometry = dataclasses.replace(GEOMETRY, window=(1, 1), strides=(2, 2))
    assert (
        candidates.rule(dataclasses.replace(geometry, batch=128), CPU) is None
    )
    (gemm,) = candidates.candidates(geometry, FORWARD)
    assert gemm.name == "gemm"


class Wrong(type(named("direct", GEOMETRY))):
    name = "wrong"

    def forward(self, x, kernel, geometry):
        return super().forward(x, kernel, geometry) * 1.001


def test_inaccurate_candidates_are_dropped():
    direct = named("direct", GEOMETRY)
    good, bad = candidates.screened([direct, Wrong()], GEOMETRY, FORWARD, CPU)
    assert good.dropped is None
    assert bad.error == pytest.approx(1e-3, rel=1e-2)
    assert bad.dropped == "error over 0.0001"


class Failing(type(named("direct", GEOMETRY))):
    name = "failing"

    def forward(self, x, kernel, geometry):
        tf.debugging.assert_equal(x, 0.0, "no kernel for this device")
        return super().forward(x, kernel, geometry)


def test_failing_candidates_are_dropped():
    direct = named("direct", GEOMETRY)
    _, bad = candidates.screened([direct, Failing()], GEOMETRY, FORWARD, CPU)
    assert bad.error is None
    assert bad.dropped.startswith("InvalidArgumentError: ")


@pytest.mark.parametrize(
    ("first", "second", "chosen", "ratio"),
    [
        (0.80, 0.85, "winograd:2", 0.80),
        # Between half the margin and the whole: it need not be lucky twice.
        (0.80, 0.94, "winograd:2", 0.80),
        (0.80, 1.30, "direct", 1.30),
        (0.80, 0.97, "direct", 0.97),
        # Clear enough.
        (0.50, 1.30, "winograd:2", 0.50),
    ],
)
def test_who_wins_by_little_must_win_again(
    first, second, chosen, ratio, monkeypatch
):
    """By the real rules, of times as noise has them."""
    shares = iter([first, second])

    def race(algorithms, *_):
        share = next(shares)
        return [
            [1e-3 * (share if a.name == "winograd:2" else 1.0)] * 3
            for a in algorithms
            if a.name in ("direct", "winograd:2")
        ]

    both = [named(name, GEOMETRY) for name in ("direct", "winograd:2")]
    monkeypatch.setattr(
        "tf_convpar.algorithms.candidates.candidates", lambda *_: both[1:]
    )
    monkeypatch.setattr("tf_convpar.algorithms.race.race", race)
    record = algorithms.consult(GEOMETRY, passes=[FORWARD])[FORWARD]
    assert record.chosen == chosen
    direct, other = record.candidates
    assert (direct.ratio, other.ratio) == (1.0, pytest.approx(ratio))


def test_while_a_graph_is_traced(races):
    chosen = []

    @tf.function(input_signature=[tf.TensorSpec((None, 14, 14, 32))])
    def traced(x):
        geometry = dataclasses.replace(GEOMETRY, batch=x.shape[0])
        chosen.append(algorithms.choose(geometry))
        return tf.reduce_sum(x)

    traced(tf.ones((2, 14, 14, 32)))
    assert len(races) == len(PASSES)
    operations = traced.get_concrete_function().graph.get_operations()
    assert not [op for op in operations if "Random" in op.type]


def test_under_tapes_and_custom_gradients(races):
    @tf.custom_gradient
    def identity(x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            algorithms.choose(GEOMETRY)
            y = tf.identity(x)
        return y, lambda upstream: inner.gradient(y, x, upstream)

    for function in (identity, tf.function(identity)):
        x = tf.Variable(2.0)
        with tf.GradientTape() as tape, tf.device("CPU:1"):
            y = function(x) ** 2
        assert float(tape.gradient(y, x)) == 4
        forget()
        cache.path().unlink(missing_ok=True)
    assert len(races) == 2 * len(PASSES)


@pytest.mark.parametrize(
    "make",
    [
        lambda: convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"]),
        lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    ],
    ids=["ConvParallelStrategy", "MirroredStrategy"],
)
def test_in_a_strategy(make, races):
    strategy = make()

    @tf.function
    def step(x):
        algorithms.choose(GEOMETRY, CPU)
        return x + 1

    with strategy.scope():
        strategy.run(step, args=(tf.constant(1.0),))
    assert len(races) == len(PASSES)


def test_no_warning_without_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        algorithms.choose(GEOMETRY)
