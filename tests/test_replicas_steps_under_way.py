"""Who is waited for in a round, and for how long."""

import math
import threading
import time

import pytest
import tensorflow as tf

from tf_convpar.replicas.local_steps import StepsRun
from tf_convpar.replicas.steps_under_way import StepsUnderWay

LEAST_S = 0.5
LOST = tf.errors.UnavailableError(None, None, "Connection refused")


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr("tf_convpar.replicas.steps_under_way._LEAST_S", LEAST_S)
    monkeypatch.setattr(
        "tf_convpar.replicas.steps_under_way._LOOK_EVERY_S", 0.05
    )


def made(seconds, steps=4):
    """A replica's steps that take so long."""

    def run():
        time.sleep(seconds)
        return StepsRun(steps, seconds, None)

    return run


def fails(error):
    def run():
        raise error

    return run


def ended(runs, *limits):
    """Who is waited for, the error, and what comes later."""
    under_way = StepsUnderWay()
    with under_way.threads(len(runs)):
        begin = time.monotonic()
        for replica, run in runs.items():
            under_way.start(replica, run)
        counts, error = under_way.ended(*limits)
        seconds = time.monotonic() - begin
    return under_way, set(counts), error, seconds


def test_who_takes_longer_than_the_first_by_its_part_is_late():
    runs = {"first": made(0.2), "slow": made(0.3), "late": made(4.0)}
    under_way, in_time, error, seconds = ended(runs, 0.5)
    assert (in_time, error) == ({"first", "slow"}, None)
    assert 1.5 * 0.2 + LEAST_S <= seconds < 3
    assert under_way.is_late("late")
    assert under_way.back() == {}
    under_way.wait()
    assert under_way.back() == {"late": StepsRun(4, 4.0, None)}
    assert not under_way.is_late("late")


@pytest.mark.parametrize(
    ("runs", "allowed_s"),
    [
        ({"a": made(0.1)}, 1.0),
        # Who makes no steps says nothing of how long others take.
        ({"a": made(0.7), "none": made(0.0, steps=0)}, 0.0),
    ],
)
def test_nobody_is_late_before_the_time_that_it_was_given(runs, allowed_s):
    _, in_time, _, _ = ended(runs | {"b": made(0.9)}, 0.0, allowed_s)
    assert in_time == runs.keys() | {"b"}


def test_without_a_limit_all_are_waited_for():
    _, in_time, _, _ = ended({"a": made(0.0), "b": made(1.0)}, math.inf)
    assert in_time == {"a", "b"}


def test_who_is_silent_is_not_waited_for():
    goes_on = threading.Event()

    def hangs():
        assert goes_on.wait(30)
        return StepsRun(4, 1.0, None)

    runs = {"first": made(0.1), "silent": hangs}
    under_way, in_time, _, seconds = ended(
        runs, 0.25, 20.0, lambda replica: replica == "silent"
    )
    assert in_time == {"first"}
    assert seconds < 5
    goes_on.set()
    under_way.wait()
    assert under_way.back().keys() == {"silent"}


def test_who_is_lost_is_late_until_it_leaves():
    under_way, in_time, error, _ = ended(
        {"first": made(0.1), "lost": fails(LOST)}, 0.25
    )
    assert (in_time, error) == ({"first"}, None)
    under_way.wait()
    assert under_way.back() == {}
    assert under_way.failed() == ["lost"]
    under_way.keep(["first"])
    assert under_way.failed() == []


@pytest.mark.parametrize(
    ("error", "patience", "others"),
    [
        # It is the user's program that fails.
        (tf.errors.InvalidArgumentError(None, None, "Shape"), 0.25, True),
        # A round is made by all who live.
        (LOST, math.inf, True),
        # Nobody has made anything.
        (LOST, 0.25, False),
    ],
)
def test_errors_that_are_told(error, patience, others):
    runs = {"a": made(0.2) if others else fails(LOST), "b": fails(error)}
    under_way, in_time, told, _ = ended(runs, patience)
    assert isinstance(told, type(error))
    assert in_time == ({"a"} if others else set())
    assert not under_way.is_late("b")
