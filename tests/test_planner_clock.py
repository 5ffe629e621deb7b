"""Medians that are believed, and others."""

import time

import pytest

from tf_convpar.planner.measure import _clock


@pytest.fixture
def lasting(monkeypatch):
    """Runs that take the seconds given, whatever else the machine does."""

    def make(seconds):
        left = iter(seconds)
        monkeypatch.setattr(_clock, "_seconds", lambda run, n: next(left))
        return lambda: None

    return make


def test_seconds_are_those_of_the_clock():
    clock = _clock.Clock(budget_s=0.02)
    seconds = clock.time(lambda: time.sleep(0.02), "nap")
    assert 0.02 <= seconds < 0.2


def test_median_of_steady_runs(lasting):
    clock = _clock.Clock(budget_s=0.0)
    run = lasting([0.005, 0.0040, 0.0041, 0.0039, 0.0040, 0.0042])
    assert clock.time(run, "steady") == 0.0040
    assert clock.wide == {}
    assert clock.again == 0


def test_unsteady_runs_are_measured_again_and_told(lasting):
    clock = _clock.Clock(budget_s=0.0)
    clock.time(
        lasting([0.01] + [0.003, 0.009, 0.003, 0.009, 0.006] * 3), "unsteady"
    )
    assert clock.again == 3
    assert clock.wide["unsteady"] > _clock.WIDE


def test_a_burst_of_others_is_forgotten(lasting):
    burst = [0.004, 0.012, 0.004, 0.012, 0.012]
    clock = _clock.Clock(budget_s=0.0)
    assert clock.time(lasting([0.01] + burst + [0.004] * 5), "burst") == 0.004
    assert clock.again == 1
    assert clock.wide == {}


def test_two_long_runs_that_agree_are_enough(lasting):
    clock = _clock.Clock()
    assert clock.time(lasting([1.30, 1.25]), "long") == 1.25
    assert clock.time(lasting([1.9, 1.3, 1.31]), "disturbed at first") == 1.31
    assert (clock.again, clock.wide) == (1, {})


def test_long_runs_that_never_agree(lasting):
    clock = _clock.Clock()
    assert clock.time(lasting([1.0, 2.0, 1.0, 2.0, 3.0]), "never") == 2.0
    assert clock.wide["never"] == pytest.approx(1 / 3)


def test_short_runs_are_counted_together():
    calls = []
    clock = _clock.Clock(budget_s=0.01)
    clock.time(lambda: calls.append(1), "short")
    assert len(calls) > 5 * 50


def test_says_what_is_next():
    said = []
    clock = _clock.Clock(budget_s=0.0, report=said.append)
    clock.time(lambda: time.sleep(0.003), "one")
    assert said == ["one"]
