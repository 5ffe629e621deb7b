"""Medians that are believed, and others."""

import itertools
import time

import pytest

from tf_convpar.planner.measure import _clock


def test_median_of_steady_runs():
    clock = _clock.Clock(budget_s=0.02)
    seconds = clock.time(lambda: time.sleep(0.004), "nap")
    assert seconds == pytest.approx(0.004, rel=0.3)
    assert clock.wide == {}
    assert clock.again == 0


def sleeper(naps):
    turns = itertools.cycle(naps)
    return lambda: time.sleep(next(turns))


def test_unsteady_runs_are_measured_again_and_told():
    clock = _clock.Clock(budget_s=0.02)
    clock.time(sleeper([0.003, 0.009]), "unsteady")
    assert clock.again == 3
    assert clock.wide["unsteady"] > _clock.WIDE


def test_a_burst_of_others_is_forgotten():
    # The first try is disturbed, the second is not.
    naps = [0.004, 0.012, 0.004, 0.012, 0.004, 0.012]
    turns = itertools.chain(naps, itertools.repeat(0.004))
    clock = _clock.Clock(budget_s=0.01)
    seconds = clock.time(lambda: time.sleep(next(turns)), "burst")
    assert seconds == pytest.approx(0.004, rel=0.3)
    assert clock.again == 1
    assert clock.wide == {}


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
