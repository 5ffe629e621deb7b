"""Medians that are believed, and others."""

import time

import pytest

from tf_convpar.planner.measure import clock


@pytest.fixture
def lasting(monkeypatch):
    """Runs that take the seconds given, whatever else the machine does.

    All of them must be made, and no more.
    """
    given = []

    def make(seconds):
        left = iter(seconds)
        given.append(left)
        monkeypatch.setattr(
            "tf_convpar.planner.measure.clock.seconds_of",
            lambda run, n=1: next(left),
        )
        return lambda: None

    yield make
    assert not [seconds for left in given for seconds in left]


def test_seconds_are_those_of_the_clock():
    watch = clock.Clock(budget_s=0.02)
    seconds = watch.time(lambda: time.sleep(0.02), "nap")
    assert 0.02 <= seconds < 0.2


def test_median_of_steady_runs(lasting):
    watch = clock.Clock(budget_s=0.0)
    run = lasting([0.005, 0.0040, 0.0041, 0.0039, 0.0040, 0.0042])
    assert watch.time(run, "steady") == 0.0040


def test_unsteady_runs_are_measured_again(lasting):
    watch = clock.Clock(budget_s=0.0)
    wide, narrower = [3, 9, 3, 9, 6], [4, 9, 4, 9, 7]
    tries = [1e-3 * s for s in (10, *wide, *narrower, *wide)]
    assert watch.time(lasting(tries), "unsteady") == 0.007


def test_a_burst_of_others_is_forgotten(lasting):
    burst = [0.004, 0.012, 0.004, 0.012, 0.012]
    watch = clock.Clock(budget_s=0.0)
    assert watch.time(lasting([0.01] + burst + [0.004] * 5), "burst") == 0.004


def test_two_long_runs_that_agree_are_enough(lasting):
    watch = clock.Clock()
    assert watch.time(lasting([1.30, 1.25]), "long") == 1.25
    assert watch.time(lasting([1.9, 1.3, 1.31]), "disturbed at first") == 1.31


def test_long_runs_that_never_agree(lasting):
    watch = clock.Clock()
    assert watch.time(lasting([1.0, 2.0, 1.0, 2.0, 3.0]), "never") == 2.0


def test_short_runs_are_counted_together():
    calls = []
    watch = clock.Clock(budget_s=0.01)
    watch.time(lambda: calls.append(1), "short")
    assert len(calls) > 5 * 50


def test_says_what_is_next():
    said = []
    watch = clock.Clock(budget_s=0.0, report=said.append)
    watch.time(lambda: time.sleep(0.003), "one")
    assert said == ["one"]
