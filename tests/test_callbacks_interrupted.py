"""A `fit` that ends by an error or Ctrl-C: no callback leaves anything behind.

Keras calls no `on_train_end` then, and a notebook goes on.
"""

import functools
import os
import re
import signal
import threading
import time
from pathlib import Path

import forks
import keras
import numpy as np
import pytest
from cases import but_slow
from cases import slow
from recordings import UntilRecorded
from replica_cases import DEVICES
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar import files
from tf_convpar import replicas
from tf_convpar.callbacks import _sync_errors
from tf_convpar.layers import _files

PROGRAM = Path(__file__).parent / "programs/interrupted.py"
OPTIONS = {"batch_size": 16, "shuffle": False, "verbose": 0}
STEPS = 6


# Nothing is left to a new one, which is tested below.
@pytest.mark.slow
@pytest.mark.parametrize("which", ["new", "same"])
def test_a_worker_dies_in_the_fit_after_one_that_was_interrupted(which):
    found = forks.found([PROGRAM, which], dict(os.environ))
    before, after = found["threads"]
    assert after == before
    for name, values in found["history"].items():
        np.testing.assert_allclose(
            values, found["expected_history"][name], rtol=1e-5
        )
    for a, b in zip(found["weights"], found["expected_weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


class Own(Exception):
    """Of another callback, or of the data."""


class Ends(keras.callbacks.Callback):
    """Ends `fit` when something is called; by default in the second epoch."""

    def __init__(self, at="on_train_batch_end", by=None):
        super().__init__()
        self.by, self.left = by or self.raises, STEPS + 3
        if at == "on_train_batch_end":
            self.on_train_batch_end = self.counts
        else:
            setattr(self, at, lambda *_, **logs: self.by())

    def counts(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.by()

    def raises(self):
        raise Own


def interrupts():
    os.kill(os.getpid(), signal.SIGINT)


def fails(x, y, steps):
    """Batches, and then an error."""
    for i in range(steps):
        at = 16 * (i % STEPS)
        yield x[at : at + 16], y[at : at + 16]
    raise Own


def wait_until(true, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


WAYS = {
    "Ctrl-C": (KeyboardInterrupt, Ends(by=interrupts)),
    "another callback": (Own, Ends()),
    "another callback's begin": (Own, Ends("on_train_begin")),
    "the end of an epoch": (Own, Ends("on_epoch_end")),
    "validation": (Own, Ends("on_test_batch_end")),
    "data": (Exception, keras.callbacks.Callback()),
}


@pytest.mark.parametrize(
    "way",
    # Between steps, and where Keras makes another error of it.
    but_slow(WAYS, ["Ctrl-C", "data"]),
)
def test_nothing_is_left_behind(strategy, way, tmp_path):
    x, y = data(16 * STEPS)
    plain = network()
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    before = threading.active_count()
    elastic = convpar.callbacks.Elastic(tmp_path / "copies", every=1e-3)
    monitor = convpar.callbacks.Monitor(tmp_path / "logs", every=1e-6)
    ours = [
        convpar.callbacks.Timeline(tmp_path / "line", after=2, steps=1),
        convpar.callbacks.Rebalance(every=1e-6),
        elastic,
        monitor,
    ]
    kind, ends = WAYS[way]
    for one, callbacks in ((plain, []), (model, ours)):
        ends.left = STEPS + 3
        options = OPTIONS | {"x": x, "y": y}
        if way == "data":
            given = fails(x, y, STEPS + 3)
            options = {"x": given, "steps_per_epoch": STEPS, "shuffle": False}
        with pytest.raises(kind):
            one.fit(
                **options,
                epochs=2,
                validation_data=(x, y),
                callbacks=[*callbacks, ends],
            )
    assert not isinstance(model.train_function, functools.partial)
    assert not isinstance(model.test_function, functools.partial)
    assert not _sync_errors._recoveries and not _files._recoveries
    assert elastic._copies.since.steps == 0 and not elastic._copies.exist
    assert not files.running_trainings([os.getpid()])
    assert monitor._writer is None
    # That of the timeline ends with what it records.
    assert wait_until(lambda: threading.active_count() <= before, 120.0)
    # What was written is there to go on from.
    assert (tmp_path / "copies/elastic.npz").exists()
    # And the next `fit` is one that nothing was before.
    histories = [
        one.fit(x, y, epochs=2, **OPTIONS).history for one in (plain, model)
    ]
    assert elastic._copies.since.steps == 0
    assert len(histories[1]["loss"]) == 2
    for name, values in histories[0].items():
        assert histories[1][name] == pytest.approx(values, rel=1e-4), name
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("mode", [slow("test"), "predict"])
def test_evaluate_and_predict_that_are_interrupted(strategy, mode):
    x, y = data(16 * STEPS)
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    elastic = convpar.callbacks.Elastic()
    callbacks = [elastic, Ends(f"on_{mode}_batch_end")]
    with pytest.raises(Own):
        if mode == "test":
            model.evaluate(x, y, verbose=0, callbacks=callbacks)
        else:
            model.predict(x, verbose=0, callbacks=callbacks)
    function = getattr(model, f"{mode}_function")
    assert not isinstance(function, functools.partial)
    assert not elastic._copies.exist and not _sync_errors._recoveries


def test_a_fit_in_which_another_one_is_interrupted_goes_on(strategy):
    """What the inner one leaves is its own."""
    x, y = data(16 * STEPS)
    with strategy.scope():
        outer, inner = (
            convpar.parallelize(network(), "equal") for _ in range(2)
        )
    elastic, other = (convpar.callbacks.Elastic(every="1h") for _ in range(2))

    class Teaches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                with pytest.raises(Own):
                    inner.fit(
                        x, y, callbacks=[other, Ends()], **OPTIONS, epochs=2
                    )
                assert not isinstance(inner.train_function, functools.partial)
                assert isinstance(outer.train_function, functools.partial)

        def on_epoch_end(self, epoch, logs=None):
            # All but the first, after which there is a copy.
            self.kept = elastic._copies.since.steps

    teaches = Teaches()
    outer.fit(x, y, callbacks=[elastic, teaches], **OPTIONS)
    assert teaches.kept == STEPS - 1


def test_a_training_that_was_taken_up_again_and_interrupted(
    strategy, tmp_path, capsys
):
    """The next one without its copy begins at the first epoch."""
    x, y = data(16 * STEPS)
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    for left in (STEPS + 3, 2):
        elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
        ends = Ends()
        ends.left = left
        with pytest.raises(Own):
            model.fit(x, y, epochs=3, callbacks=[elastic, ends], **OPTIONS)
    assert "going on after step" in capsys.readouterr().out
    assert len(model.fit(x, y, epochs=2, **OPTIONS).epoch) == 2
    assert "going on" not in capsys.readouterr().out
    # With it, where that was: disks are slower than steps, by how much varies.
    elastic = convpar.callbacks.Elastic(tmp_path, every=1e-3)
    history = model.fit(x, y, epochs=3, callbacks=[elastic], **OPTIONS)
    said = capsys.readouterr().out
    begins = re.search(r"going on after step \d+ of epoch (\d)", said)
    assert begins, said
    assert history.epoch == list(range(int(begins[1]) - 1, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_shares_that_move_after_the_last_step(strategy, monkeypatch):
    """The next `fit` trains the model as it lies then."""

    found = iter([1.0] * (STEPS - 2) + [5.0] * 2)

    class Scripted:
        def seconds(self, device):
            return next(found) if device.endswith("CPU:2") else 1.0

    monkeypatch.setattr("tf_convpar.callbacks._rebalance.Speeds", Scripted)
    x, y = data(16 * STEPS)
    plain = network()
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    rebalance = convpar.callbacks.Rebalance(
        every=1e-6, cooldown=1e-6, patience=2
    )
    elastic = convpar.callbacks.Elastic(every="1h")
    model.fit(x, y, callbacks=[elastic, rebalance], **OPTIONS)
    assert [decision.step for decision in rebalance.decisions] == [STEPS]
    model.fit(x, y, epochs=2, **OPTIONS)
    plain.fit(x, y, epochs=3, **OPTIONS)
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


class Pauses(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.1)


@pytest.fixture
def traced(strategy):
    """A model whose step has been traced."""
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    model.fit(*data(16 * STEPS), **OPTIONS)
    return model


@pytest.mark.slow
def test_a_timeline_waits_for_no_steps_that_never_come(traced, tmp_path):
    x, y = data(16 * STEPS)
    line = convpar.callbacks.Timeline(tmp_path / "line", after=1, steps=20)
    ends = Ends()
    # Some of them come.
    ends.left = STEPS
    with pytest.raises(Own):
        traced.fit(x, y, callbacks=[line, Pauses(), ends], **OPTIONS)
    assert wait_until(line._recording.done, timeout_s=120.0)


@pytest.mark.slow
def test_a_timeline_after_one_that_was_interrupted(traced, tmp_path):
    """Whose steps were still being recorded."""
    x, y = data(16 * STEPS)
    first = convpar.callbacks.Timeline(tmp_path / "a", after=1, steps=12)
    ends = Ends()
    ends.left = 2
    with pytest.raises(Own):
        traced.fit(x, y, callbacks=[first, Pauses(), ends], **OPTIONS)
    assert not first._recording.done()
    second = convpar.callbacks.Timeline(tmp_path / "b", after=1, steps=2)
    callbacks = [second, Pauses(), UntilRecorded(second)]
    traced.fit(x, y, epochs=1000, callbacks=callbacks, **OPTIONS)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        *("b.json", "b.png")
    ]


@pytest.mark.parametrize("kind", ["SyncSGD", slow("ParallelSGD"), "AsyncSGD"])
def test_replicas_that_are_interrupted(kind):
    """The model has what they have learned, and they go on from there."""
    x, y = data(16 * STEPS)
    plain, model = network(), network()
    # With one that has all the data, all methods are plain Keras.
    method = getattr(replicas, kind)(model, devices=DEVICES[1:2])
    before = threading.active_count()
    monitor = convpar.callbacks.Monitor(every=1e-6)
    for fit in (plain.fit, method.fit):
        with pytest.raises(Own):
            fit(x, y, epochs=2, callbacks=[monitor, Ends()], **OPTIONS)
    assert not files.running_trainings([os.getpid()])
    assert wait_until(lambda: threading.active_count() <= before)
    learned = plain.get_weights()
    if kind == "AsyncSGD":
        # Which may have been under way with more steps.
        centre = np.split(method.centre.value().numpy(), [36])[0]
        learned = [centre.reshape(learned[0].shape)]
        assert np.abs(learned[0] - network().get_weights()[0]).max() > 1e-3
    for a, b in zip(learned, model.get_weights(), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    if kind == "AsyncSGD":
        return
    for fit in (plain.fit, method.fit):
        fit(x[:48], y[:48], **OPTIONS)
    for a, b in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
