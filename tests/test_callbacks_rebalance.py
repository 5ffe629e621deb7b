"""`Rebalance`: shares follow speeds, and nothing else changes."""

import itertools
import os
import statistics
import time
import types
from pathlib import Path

import busy_looks
import forks
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar import machines
from tf_convpar import timeline
from tf_convpar.callbacks import _rebalance
from tf_convpar.callbacks.speeds import Speeds
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import LayerSplit

PROGRAM = Path(__file__).parent / "programs/rebalance.py"


@pytest.mark.slow
@pytest.mark.parametrize("split", ["filters", "samples"])
def test_shares_leave_a_slow_worker_and_come_back(split):
    """Then the other one dies, beside `Elastic`."""
    found = forks.found([PROGRAM, split], dict(os.environ))
    first, slow, again = found["shares"]
    # Other programs on this machine make devices slower as well.
    assert slow[2] < 0.6 * first[2]
    assert slow[2] < 0.6 * again[2]
    assert found["devices"] == 2
    step, ratios, saves, text = next(
        d for d in found["decisions"] if d[1][2] > 2
    )
    assert step > 8
    assert saves > 0.15
    assert f"task:1/device:CPU:0 takes {ratios[2]:.1f} times as long" in text
    on_the_timeline(found["timeline"]["traceEvents"], found["decisions"])
    for a, b in zip(found["weights"], found["expected"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert found["loss"] == pytest.approx(found["expected_loss"], rel=1e-6)


def on_the_timeline(events, decisions):
    """Each change is there, between the same steps as it was made."""
    spans = {
        kind: [
            (e["name"], e["ts"], e["ts"] + e["dur"])
            for e in events
            if e.get("cat") == kind
        ]
        for kind in ("step", timeline.CHANGES, timeline.COPIES)
    }
    moved = [s for s in spans[timeline.CHANGES] if s[0][:5] == "moved"]
    steps = spans["step"]
    assert {name for name, *_ in steps} == {"step"}
    for (name, start, end), (number, _, _, text) in zip(
        moved, decisions, strict=True
    ):
        assert name == f"moved shares: {machines.short(text)}"
        assert steps[number - 1][2] <= start < end <= steps[number][1]
    # `Elastic` makes it in a step.
    names = [name for name, *_ in spans[timeline.CHANGES]]
    assert "lost worker 0" in names
    again = next(s for s in spans[timeline.CHANGES] if "made again" in s[0])
    assert any(b <= again[1] < again[2] <= e for _, b, e in steps)
    assert spans[timeline.COPIES]


class Scripted:
    """Devices whose speeds are a list: of the last one, at each look."""

    def __init__(self, last):
        self.last = itertools.chain(last, itertools.repeat(last[-1]))

    def seconds(self, device):
        return next(self.last) if device.endswith("CPU:2") else 1.0


@pytest.mark.parametrize(
    ("last", "cooldown", "changes"),
    [
        ([1.0], 1e-6, []),
        # Within what measurements differ by.
        slow(([1, 1, 1, 1.2], 1e-6, [])),
        # Two looks in a row are asked for.
        ([1, 1, 1, 5, 1, 5, 1, 1], 1e-6, []),
        ([1, 1, 1, 5, 5, 5], 1e-6, [5]),
        slow(([1, 1, 1, 5, 5, 1], 1e-6, [5, 7])),
        ([1, 1, 1, 5, 5, 1], "1h", [5]),
    ],
)
def test_nothing_moves_to_and_fro(
    strategy, monkeypatch, last, cooldown, changes
):
    monkeypatch.setattr(
        "tf_convpar.callbacks._rebalance.Speeds", lambda: Scripted(last)
    )
    x, y = data(160)
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    rebalance = convpar.callbacks.Rebalance(
        every=1e-6, cooldown=cooldown, patience=2
    )
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[rebalance])
    assert [d.step for d in rebalance.decisions] == changes


def changes(
    strategy, monkeypatch, looks, step_s=lambda split, look: 0.0, **options
):
    """Decisions where looks find this, one in 10 s; nothing is laid out.

    A step takes what `step_s` says of the shares, and what looks find.
    """
    split = [HowSplit(tuple(strategy.devices), {"a": LayerSplit("filters")})]
    clock = iter(range(10, 10**6, 10))
    now, coming = [0.0], [iter(seconds) for seconds in looks]

    class Looks:
        def seconds(self, device):
            return next(coming[strategy.devices.index(device)])

    for name, replaced in {
        "Speeds": Looks,
        "merge": lambda model: None,
        "relayout": lambda model, plain, how, strategy: split.__setitem__(
            0, how
        ),
        "HowSplit": types.SimpleNamespace(last=lambda *_: split[0]),
        "time": types.SimpleNamespace(monotonic=lambda: now[0], time=time.time),
    }.items():
        monkeypatch.setattr(f"tf_convpar.callbacks._rebalance.{name}", replaced)
    rebalance = convpar.callbacks.Rebalance(**options)
    rebalance.set_model(
        types.SimpleNamespace(
            name="model",
            distribute_strategy=strategy,
            make_train_function=lambda: None,
        )
    )
    rebalance.on_train_begin()
    for look in zip(*looks, strict=True):
        end = next(clock)
        now[0] = end - step_s(split[0], look)
        rebalance.on_train_batch_begin(0)
        now[0] = end
        rebalance.on_train_batch_end(0)
    return rebalance.decisions


def seconds(recorded):
    return [[float(x) / 1e4 for x in text.split()] for text in recorded]


@pytest.mark.parametrize(
    ("recorded", "most"), [(busy_looks.NOISY, 4), (busy_looks.BUSY, 6)]
)
def test_shares_do_not_follow_noise(strategy, monkeypatch, recorded, most):
    looks = seconds(recorded)
    found = changes(strategy, monkeypatch, looks)
    # Of single looks, many say that a device is slower or faster.
    medians = [statistics.median(one) for one in looks]
    far = sum(
        max(row) / min(row) > 1.3
        for row in (
            [x / m for x, m in zip(row, medians, strict=True)]
            for row in zip(*looks, strict=True)
        )
    )
    assert far > 0.3 * len(looks[0])
    # The time between two changes becomes longer and longer.
    steps = [0, *(d.step for d in found)]
    pauses = [b - a for a, b in itertools.pairwise(steps)]
    assert max(pauses) > 6 * min(pauses)


@pytest.mark.parametrize("start", range(30, 91, 30))
def test_a_slow_worker_is_found_in_noise(strategy, monkeypatch, start):
    one, two, three = seconds(busy_looks.NOISY)
    three = three[:start] + [4 * x for x in three[start:]]
    made = changes(strategy, monkeypatch, [one, two, three])
    assert len(made) <= 6
    before = [d for d in made if d.step <= start]
    assert all(list(d.slower.values())[2] < 2 for d in before)
    after = made[len(before)]
    assert after.step <= start + 15
    assert any(list(d.slower.values())[2] > 2.5 for d in made)


def test_shares_go_back_though_that_saves_little(strategy, monkeypatch):
    """Once nothing was slow for long."""
    script = [1.0] * 3 + [1.5] * 6 + [1.0] * 40
    looks = [[1.0] * len(script), [1.0] * len(script), script]
    away, back = changes(strategy, monkeypatch, looks)
    assert away.step == 6
    assert (back.step, back.saves) == (21, pytest.approx(1 / 9))
    assert set(back.slower.values()) == {1.0}


@pytest.mark.parametrize(("much", "left"), [(1.2, True), (0.1, False)])
def test_a_device_is_left_out_that_holds_steps_up(
    strategy, monkeypatch, much, left
):
    """By what it takes in and sends out, which shares do not change."""
    slow = strategy.devices[2]

    def step_s(split, look):
        ratios = dict(zip(strategy.devices, look, strict=True))
        share = split.speeds.get(slow, 1.0)
        rest = much * (ratios[slow] - 1) if share else 0.0
        return 3 * split.time(ratios, strategy.devices) + 0.2 + rest

    script = [1.0] * 10 + [5.0] * 40 + [3.5] * 40 + [1.0] * 60
    looks = [[1.0] * len(script), [1.0] * len(script), script]
    made = changes(strategy, monkeypatch, looks, step_s)
    text = f"{slow} takes 5.0 times as long as at first"
    assert str(made[0]) == text
    assert made[-1].slower[slow] == 1.0 and made[-1].left == ()
    if left:
        assert len(made) == 3
        assert str(made[1]) == text + " and is left out"
        # Of a step of 2.6 and some s. Some of it is not convolution, so it is
        # shorter than what is promised.
        assert made[1].saves == pytest.approx(0.75, abs=0.06)
        # It stays so while it is not twice as fast.
        assert made[2].step > 90
    else:
        assert all(d.left == () for d in made)


def test_time_is_that_of_the_slowest_device():
    layers = {
        "a": LayerSplit("filters", (2, 1, 1)),
        "b": LayerSplit("samples"),
        "c": LayerSplit("chief"),
    }
    split = HowSplit(("x", "y", "z"), layers)
    assert split.time({}, "xyz") == pytest.approx(2 / 4 + 1 / 3)
    assert split.time({"z": 4.0}, "xyz") == pytest.approx(4 / 4 + 4 / 3)
    # Of two that are left.
    assert split.time({"z": 4.0}, "yz") == pytest.approx(4 / 2 + 4 / 2)
    other = HowSplit(("x", "y", "z"), layers, {"z": 0.25})
    assert other.time({"z": 4.0}, "xyz") == pytest.approx(2 / 3.25 + 1 / 2.25)
    assert other.on("xz")["a"] == {"split": "filters", "shards": (2, 0.25)}
    assert other.on("xz")["c"] == "chief"


def test_speeds_are_measured():
    """The same work takes about the same time."""
    speeds = Speeds()
    first = speeds.seconds("CPU:0")
    assert 1e-3 < first < 5.0
    assert speeds.seconds("CPU:0") / first == pytest.approx(1, abs=0.9)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"every": "soon"}, "every"),
        ({"cooldown": -1}, "cooldown"),
        ({"margin": 15}, "margin"),
        ({"patience": 0}, "patience"),
    ],
)
def test_what_is_wrong(wrong, name):
    with pytest.raises(ValueError, match=f"{name}.*Received: {name}="):
        convpar.callbacks.Rebalance(**wrong)


def test_a_model_without_devices_is_refused():
    with pytest.raises(ValueError, match="ConvParallelStrategy.*Received"):
        network().fit(
            *data(), verbose=0, callbacks=[convpar.callbacks.Rebalance()]
        )


def test_a_model_of_which_nothing_is_split(strategy):
    """Moves nothing, and ends no training."""
    x, y = data(64)
    with strategy.scope():
        models = [network(), convpar.parallelize(network(), {".*": None})]
    for model in models:
        rebalance = convpar.callbacks.Rebalance(every=1e-6, cooldown=1e-6)
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[rebalance])
        assert not rebalance.decisions


def test_a_worker_that_is_lost_while_shares_move(strategy, monkeypatch):
    """The step after it finds out, and `Elastic` takes care of it."""
    monkeypatch.setattr(
        "tf_convpar.callbacks._rebalance.Speeds",
        lambda: Scripted([1, 1, 1, 5, 5]),
    )
    moves, relayout = [], _rebalance.relayout

    def lost_at_first(model, *args):
        moves.append(args)
        if len(moves) == 1:
            model.train_function = None
            raise tf.errors.UnavailableError(None, None, "Connection reset")
        relayout(model, *args)

    monkeypatch.setattr(
        "tf_convpar.callbacks._rebalance.relayout", lost_at_first
    )
    x, y = data(160)
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    rebalance = convpar.callbacks.Rebalance(
        every=1e-6, cooldown=1e-6, patience=2
    )
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[rebalance])
    assert len(moves) == 2 and len(rebalance.decisions) == 1
