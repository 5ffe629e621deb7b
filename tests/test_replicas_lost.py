"""Replicas whose worker dies or hangs while they learn, and returns."""

import os
import types
from pathlib import Path

import forks
import numpy as np
import pytest
import tensorflow as tf
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.cluster.spec import Task
from tf_convpar.machines import task_of
from tf_convpar.replicas.data import Arrays
from tf_convpar.replicas.local_steps import LocalSteps

PROGRAM = Path(__file__).parent / "programs/replicas_lost.py"
METHODS = ["SyncSGD", "DiLoCo"]
OTHERS = [
    *("AsyncEASGD", "AsyncMEASGD", "DownpourSGD", "HogwildSGD", "SyncEASGD"),
    *("ParallelSGD", "RoundRobinEASGD"),
]
# Seconds of the step in which workers are lost: to notice it, to cut the data
# anew and to trace. Half a second to one on an idle machine where they are
# killed, six or seven where they hang.
BOUND_S = 20.0


def trained(env, *names):
    return forks.found([PROGRAM, *names], env)


@pytest.fixture(scope="module")
def found():
    return trained(dict(os.environ), *METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_others_go_on_and_the_lost_returns(found, name):
    check(found[name])


def test_nobody_waits_for_who_stands_still():
    """And it takes part again, with all that it had, when it goes on."""
    late = forks.found(
        [PROGRAM.with_name("replicas_late.py")], dict(os.environ)
    )
    counts = [len(tasks) for tasks in late["tasks"]]
    # A machine that is busy holds another one up in a round of these as well.
    assert counts[2:4] == [2, 2]
    assert 3 in counts[:2]
    assert 3 in counts[4:]
    assert "/job:worker/replica:0/task:0" not in late["tasks"][2]
    # Five seconds pass before who does not answer is taken for lost.
    assert max(late["seconds"][2:]) < 5
    assert late["devices"] == 3
    assert late["losses"][-1] < 0.7 * late["losses"][0]


@pytest.mark.slow
def test_so_do_those_of_other_methods():
    for name, case in trained(dict(os.environ), *OTHERS).items():
        if name != "undisturbed":
            check(case)


def test_nothing_that_others_had_learned_is_lost(found):
    """The lost replica had the centre; the numbers are as without a fault."""
    expected = found["undisturbed"]["weights"]
    for a, b in zip(found["SyncSGD"]["weights"], expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_error_names_those_with_whom_the_last_replica_went(
    strategy, monkeypatch
):
    """Not TensorFlow's, which names one of them and no cure."""
    with strategy.scope():
        model = network()
    replicas = convpar.replicas.SyncSGD(model, devices=strategy.devices[:2])
    gone = Task(*task_of(strategy.devices[0]), "a:2222")
    cluster = types.SimpleNamespace(lost=lambda: [gone])
    monkeypatch.setattr(
        "tf_convpar.replicas._survivors.members", lambda: cluster
    )

    def fails():
        raise tf.errors.UnavailableError(None, None, "Connection reset")

    with pytest.raises(RuntimeError, match=r"a replica.*lost localhost 0.*Let"):
        replicas._survived(fails)


@pytest.mark.parametrize(
    "often", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 7))]
)
def test_what_fails_in_passing_is_tried_again(strategy, monkeypatch, often):
    """All are there: a connection failed, or a call left from a hang."""
    cluster = types.SimpleNamespace(lost=list, returned=list)
    monkeypatch.setattr(
        "tf_convpar.replicas._survivors.members", lambda: cluster
    )
    with strategy.scope():
        model = network()
    method = convpar.replicas.SyncSGD(model, devices=strategy.devices[:2])
    method.fit(*data(), batch_size=8, steps_per_epoch=1, verbose=0)
    batch, failed = Arrays.batch, []

    def failing(self, replica):
        # In the second step, and whenever it is made again.
        if model.optimizer.iterations == 2 and len(failed) < often:
            failed.append(replica)
            raise tf.errors.AbortedError(None, None, "Cleanup 1")
        return batch(self, replica)

    monkeypatch.setattr(Arrays, "batch", failing)
    options = {"batch_size": 8, "steps_per_epoch": 4, "verbose": 0}
    if often < 7:
        method.fit(*data(), **options)
        assert model.optimizer.iterations == 5
    else:
        with pytest.raises(tf.errors.AbortedError, match="Cleanup"):
            method.fit(*data(), **options)
    assert len(failed) == often


def check(case):
    everyone, lost = [0, 1, 2], case["lost"]
    left = [t for t in everyone if t not in lost]
    assert case["echoed"] == 2
    # The returned come last.
    assert case["tasks"] == [everyone, left, left, left + lost]
    assert case["steps"] == 4 * 8
    assert max(case["seconds"][1:]) < BOUND_S
    assert min(case["losses"][-2:]) < 0.7 * case["losses"][0]
    assert case["after"] < case["losses"][0]
    # One died between two calls.
    between, away = case["between"], lost[0]
    others = [sorted({*everyone} - {away})] * 2
    assert [sorted(t) for t in between["tasks"]] == [
        *others, everyone, others[0]
    ]  # fmt: skip
    assert abs(between["evaluated"] - case["after"]) < 0.1


def test_steps_of_the_others_are_not_made_again(strategy, monkeypatch):
    """What one has not made is all that is left of the round."""
    cluster = types.SimpleNamespace(lost=list, returned=list, absent=[])
    monkeypatch.setattr(
        "tf_convpar.replicas._survivors.members", lambda: cluster
    )
    with strategy.scope():
        model = network()
    devices = strategy.devices[:3]
    method = convpar.replicas.DiLoCo(
        model, every=4, devices=devices, shares=[1.0] * 3
    )
    run, made = LocalSteps.run, []

    def failing(self, steps, *args):
        made.append((self._replica.device, steps))
        if len(made) == 3 + 1:
            raise tf.errors.UnavailableError(None, None, "Connection reset")
        return run(self, steps, *args)

    monkeypatch.setattr(LocalSteps, "run", failing)
    method.fit(*data(), batch_size=8, epochs=2, steps_per_epoch=4, verbose=0)
    assert [made.count((device, 4)) for device in devices] in (
        [3, 2, 2], [2, 3, 2], [2, 2, 3]
    )  # fmt: skip
    assert [m.samples for m in method._members.values()] == [2 * 4 * 8] * 3


@pytest.mark.slow
def test_who_has_not_answered_at_first_gets_a_replica_later():
    program = PROGRAM.with_name("replicas_late.py")
    found = forks.found([program], dict(os.environ))
    # The last has lost a machine before its first step.
    assert found["replicas"] == [2, 3, 2]
    assert found["devices"] == 3
