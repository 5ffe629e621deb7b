"""How algorithms are timed side by side."""

import sys

import pytest

from tf_convpar import algorithms
from tf_convpar.algorithms import PASSES
from tf_convpar.algorithms import Geometry
from tf_convpar.algorithms import race


class Time:
    """A clock on which only what sleeps takes time."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr("tf_convpar.algorithms.race.time", time)
    return time


@pytest.mark.parametrize("which", PASSES)
def test_sample_keeps_sums_long_and_is_small(which):
    large = Geometry((224, 224), 512, 512, window=(11, 11), batch=64)
    part = race.sample(large, which)
    assert part.multiplications < 2e8
    if which == "kernel_gradient":
        assert part.image == (224, 224)
        return
    assert part.batch == 1
    summed = part.filters if which == "input_gradient" else part.channels
    assert summed == 512


def test_sums_of_kernel_gradients_run_over_all_images():
    large = Geometry((14, 14), 512, 512, window=(3, 3), batch=64)
    assert race.sample(large, "kernel_gradient").batch == 64


def test_rounds(time):
    order = []

    def sleeper(name, seconds):
        def sleep():
            order.append(name)
            time.sleep(seconds)

        return sleep

    runs = [sleeper("d", 0.01), sleeper("a", 0.009), sleeper("slow", 0.1)]
    times = race.rounds(runs, 1e-3)
    assert [len(t) for t in times] == [3, 3, 1]
    assert order[:3] == ["d", "a", "slow"]  # A first time, not counted.
    # The first is timed once more to see how long a sample must be.
    assert order[3:] == ["d", "d", "a", "slow", "a", "d", "d", "a"]
    alone = race.rounds([sleeper("d", 0.01), sleeper("s", 0.1)], 10.0)
    assert [len(t) for t in alone] == [1, 1]


def test_rounds_of_long_runs(time):
    def sleeper(seconds):
        return lambda: time.sleep(seconds)

    runs = [sleeper(0.36), sleeper(0.12), sleeper(0.13), sleeper(0.2)]
    times = race.rounds(runs, 1e-3)
    # Direct is out at once, and who was 1.6 times the best after two rounds.
    assert [len(t) for t in times] == [1, 3, 3, 2]
    decided = algorithms.decide(
        {"direct": times[0], "a": times[1], "b": times[2]}
    )
    assert decided == "a"
    # Nobody but direct is left: no need to go on.
    times = race.rounds([sleeper(0.12), sleeper(0.3)], 1e-3)
    assert [len(t) for t in times] == [1, 1]


def test_first_runs_never_count(time):
    """Memory that nobody had before costs seconds per GiB in places."""

    def finder(seconds, first):
        pauses = iter([first])
        return lambda: time.sleep(next(pauses, seconds))

    runs = [finder(0.3, 0.3), finder(0.11, 0.6), finder(0.2, 0.25)]
    times = race.rounds(runs, 1e-3)
    assert max(times[1]) < 0.3
    named = zip(("direct", "a", "b"), times, strict=True)
    assert algorithms.decide(dict(named)) == "a"


def test_rounds_go_on_while_in_doubt(time):
    def worth(times):
        return 0.0 if len(times[0]) == 6 else 1e4

    # Direct is the slower one by far: a race that it wins ends early.
    runs = [lambda: time.sleep(0.02), lambda: time.sleep(0.01)]
    times = race.rounds(runs, 0.05, budget_factor=worth)
    assert [len(t) for t in times] == [6, 6]
    for ratios, budgets in (
        ([0.6, 0.6, 0.6], 1.0),
        ([0.6, 0.6, 1.2], 3.0),
        ([0.97, 0.97, 1.2], 1.0),
        ([1.2, 1.2, 1.2], 1.0),
        # Not luck any more.
        ([0.6, 0.6, 0.6, 0.6, 0.6], 0.0),
        ([0.5, 0.5, 0.5], 0.0),
        ([0.6, 0.6, 0.6, 0.6, 0.8], 1.0),
    ):
        direct = [1.0] * len(ratios)
        assert algorithms.budget_factor([direct, ratios]) == budgets


def test_status_line(monkeypatch, capsys):
    with race.StatusLine("14x14x3 -> 8") as report:
        report("fft:8")
    monkeypatch.setattr(race.StatusLine, "PATIENCE_S", 0.0)
    with race.StatusLine("14x14x3 -> 8") as report:
        report("fft:8")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with race.StatusLine("14x14x3 -> 8") as report:
        report("fft:8")
    assert "14x14x3 -> 8, fft:8" in capsys.readouterr().err
