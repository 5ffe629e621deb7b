"""`Elastic`: workers die or hang in `fit`, `evaluate`, `predict`, and return.

Numbers are those of plain Keras on the same batches, as if nothing had been.
"""

import os
from pathlib import Path

import forks
import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import slow
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.callbacks.peer_copies import next_devices
from tf_convpar.callbacks.replay_log import rates_of
from tf_convpar.callbacks.replay_log import set_rates
from tf_convpar.callbacks.snapshot import Snapshot
from tf_convpar.callbacks.snapshot import state_of
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout
from tf_convpar.units import interval

PROGRAM = Path(__file__).parent / "programs/elastic.py"
# The fault, and how the model is split; whether it comes in a step of training
# or of validation, in which epoch and step; and which workers are lost.
CASES = [
    ("kill", "filters", "train", 1, 0, 1),
]
OTHERS = [
    # Calls that it had left when it hung fail when it is back.
    ("echo", "samples", "train", 1, 2, 1),
    # One is killed and one hangs, so that nobody is left.
    ("both", "mixed", "train", 1, 2, 0, 1),
    # The other one is killed while this one is taken back.
    ("again", "filters", "train", 1, 2, 1),
    # What it had is with the other one; or with nobody.
    ("near", "samples", "train", 1, 4, 1),
    # After the last step of an epoch, at whose end Keras waits for all.
    ("late", "filters", "train", 1, 5, 0),
    # In the very first step.
    ("kill", "filters", "train", 0, 0, 1),
    ("kill", "samples", "test", 0, 3, 0, 1),
    ("kill", "filters", "test", 1, 2, 0),
    ("kill", "samples", "train", 2, 0, 1),
    ("kill", "filters", "train", 1, 1, 0, 1),
    ("kill", "samples", "train", 1, 5, 0),
    ("stop", "samples", "train", 1, 2, 1),
    ("stop", "filters", "test", 1, 2, 0),
    ("stop", "filters", "train", 1, 1, 0, 1),
    ("near", "filters", "train", 1, 2, 0),
    ("near", "filters", "train", 1, 5, 0, 1),
    ("new", "samples", "train", 0, 0, 1),
    ("new", "filters", "train", 1, 0, 0),
    # They do not reach one another, and the later one leaves.
    ("apart", "filters", "train", 1, 2, 1),
    ("apart", "samples", "test", 1, 2, 1),
    # A connection fails, and they do reach one another.
    ("blink", "filters", "train", 1, 2, 1),
]
# Seconds of the step that meets a lost worker, or one that is back: one to two
# on an idle machine, most of it to trace.
BOUND_S = 20.0


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in OTHERS)],
    ids=lambda case: " ".join(map(str, case)),
)
def test_nothing_is_lost_with_a_worker(case):
    found = forks.found([PROGRAM, *case], dict(os.environ))
    how, _, _, epoch, batch, *lost = case
    lost = [] if how == "blink" else lost
    # In validation of the epoch; or in a step, so before its end as well.
    left = [3 - len(lost) if e in (epoch, epoch + 1) else 3 for e in range(4)]
    if how == "again":
        left[3] = 2
    if how == "new":
        left = [2 if e <= epoch + 1 else 3 for e in range(4)]
    if how == "near":
        # Whoever returns waits for the next copy on the chief.
        left[3] = 3 - len(lost)
        # All steps but the first, which made the variables of metrics: there
        # is another such copy after it.
        since = 6 * epoch + batch - 1
        (again,) = map(int, found["again"])
        assert again < since if len(lost) == 1 else again == since
    assert found["devices"] == left
    assert not found["failing"]
    # What goes through the forwarder takes longer.
    bound_s = 2 * BOUND_S if how in ("apart", "blink") else BOUND_S
    first = (epoch, batch) == (0, 0)
    assert max(found["seconds"][0 if first else 1 :]) < bound_s
    for name, values in found["history"].items():
        np.testing.assert_allclose(
            values, found["expected_history"][name], rtol=1e-5
        )
    for name in ("weights", "slots"):
        for a, b in zip(found[name], found[f"expected_{name}"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    # One more worker was killed in `predict`, and one before a save.
    for a, b in zip(found["saved"], found["weights"], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        found["after"], found["expected_after"], rtol=1e-5
    )
    assert found["predicted"] < 1e-5


def test_shards_are_kept_by_the_next_worker():
    chief, *gpus, last = [
        f"/job:{task}/device:{kind}:{number}"
        for task, kind, number in (
            ("chief/task:0", "CPU", 0),
            ("worker/task:0", "GPU", 0),
            ("worker/task:0", "GPU", 1),
            ("worker/task:2", "CPU", 0),
        )
    ]
    assert next_devices([chief, *gpus, last], chief) == {
        chief: chief,
        gpus[0]: last,
        gpus[1]: last,
        last: gpus[0],
    }
    # One worker alone has nobody else.
    assert next_devices(gpus, chief) == dict.fromkeys(gpus, chief)


def test_times_of_copies():
    assert [interval("every", t) for t in (3, "30s", "5min", "1 h", "2")] == [
        *(3.0, 30.0, 300.0, 3600.0, 2.0)
    ]
    for wrong in (0, -1, "soon", "3 days", "s", None):
        with pytest.raises(ValueError, match="every.*Received"):
            convpar.callbacks.Elastic(every=wrong)
    with pytest.raises(ValueError, match="neighbours.*Received.*soon"):
        convpar.callbacks.Elastic(neighbours="soon")


def test_a_model_without_workers_is_refused():
    with pytest.raises(ValueError, match="ConvParallelStrategy.*Received"):
        network().fit(
            *data(), verbose=0, callbacks=[convpar.callbacks.Elastic()]
        )


def test_other_errors_are_not_swallowed(strategy):
    """Nobody is lost where there is no cluster."""
    with strategy.scope():
        model = convpar.parallelize(network(), "equal")
    x, _ = data()
    with pytest.raises(Exception, match="(?i)label|class|range"):
        model.fit(
            x,
            np.full(len(x), 99),
            verbose=0,
            callbacks=[convpar.callbacks.Elastic()],
        )


@pytest.mark.slow
def test_without_a_fault_training_is_the_same(strategy):
    """Batches, rates and results, with several steps in a call."""
    x, y = data(88)
    found = []
    for callbacks in ([], [convpar.callbacks.Elastic(every=1e-3)]):
        with strategy.scope():
            model = network(keras.optimizers.Adam(0.01))
            model.compile(
                model.optimizer,
                model.loss,
                metrics=["accuracy"],
                steps_per_execution=3,
            )
            model = convpar.parallelize(model, "equal")
        history = model.fit(
            *(x, y),
            batch_size=16,
            epochs=3,
            shuffle=False,
            verbose=0,
            validation_data=(x, y),
            callbacks=callbacks,
        )
        found.append((history.history, model.get_weights()))
    (history, weights), (other, others) = found
    for name, values in history.items():
        assert values == pytest.approx(other[name]), name
    for a, b in zip(weights, others, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_lies_otherwise_and_is_what_it_was(strategy):
    """Its algorithm and wire dtype too; what was whole stays whole."""
    x, y = data()
    with strategy.scope():
        extra = [keras.layers.Conv2D(6, 3, name="split")]
        plan = {"split": (3, 2, 1), "conv2d": None}
        model = convpar.parallelize(
            network(extra=extra), plan, algorithm="gemm", wire_dtype="bfloat16"
        )
    model.fit(x, y, verbose=0)
    expected = model.predict(x, verbose=0)
    how = HowSplit.of(model, strategy.devices)
    plain = convpar.merge(model)
    strategy.change_devices(strategy.devices[::2])
    relayout(model, plain, how, strategy)
    whole, split = model.layers[:2]
    assert split.shards == (3, 1)
    assert [s.device[-5:] for s in split.kernel.value.shards] == [
        *("CPU:0", "CPU:2")
    ]
    assert (split.algorithm, split.wire_dtype) == ("gemm", "bfloat16")
    assert (whole.algorithm, whole.split) == ("gemm", "chief")
    assert not whole.is_spread
    # Feature maps are rounded on their way to other devices than before.
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected, rtol=0.05, atol=0.05
    )
    for a, b in zip(
        *(m.optimizer.variables for m in (model, plain)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    history = model.fit(x, y, verbose=0).history
    assert history["loss"][0] < 1.0


def test_a_copy_has_all_of_a_state_or_nothing(strategy, monkeypatch):
    """What fails may be any variable's, whoever is lost."""
    x, y = data()
    x_here = tf.constant(x)
    with strategy.scope():
        model = convpar.parallelize(network(keras.optimizers.Adam()), "equal")
    model.fit(x, y, verbose=0)
    snapshot = Snapshot(model)
    for variable in (state_of(snapshot.plain)[3], None):
        model.fit(x, y, verbose=0)
        kind = type(variable)
        with monkeypatch.context() as patch:
            if variable is not None:
                patch.setattr(kind, "assign", fails_for(variable, kind.assign))
            snapshot.begin(model, (0, 0))
            # It has come, so no step since is made again.
            assert snapshot.arrived(wait=True)
            if variable is not None:
                # Nothing that has not been given yet lies elsewhere.
                assert {type(v) for v in snapshot._values} == {type(x_here)}
        for a, b in zip(state_of(snapshot.plain), state_of(model), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["__init__", slow("read")])
def test_a_worker_dies_while_a_copy_begins(strategy, monkeypatch, name):
    """Nothing is made of it; the next step would find out who it was."""
    inner, calls = getattr(Snapshot, name), []

    def failing(self, model, *place):
        calls.append(len(model.metrics_variables))
        if len(calls) == 2:
            raise tf.errors.UnavailableError(None, None, "lost")
        return inner(self, model, *place)

    x, y = data()
    with strategy.scope():
        plain = network(keras.optimizers.Adam())
        plain.compile(plain.optimizer, plain.loss, metrics=["accuracy"])
        model = convpar.parallelize(plain, "equal")
    monkeypatch.setattr(Snapshot, name, failing)
    elastic = convpar.callbacks.Elastic(every=1e-3)
    model.fit(x, y, epochs=5, batch_size=8, verbose=0, callbacks=[elastic])
    if name == "__init__":
        # Before the first step, after it in vain, and after the second.
        assert len(calls) == 3
        assert calls[0] < calls[1] == calls[2]
    else:
        assert len(calls) > 2


def fails_for(variable, assign):
    def failing(self, value):
        if self is variable:
            raise tf.errors.UnavailableError(None, None, "lost")
        return assign(self, value)

    return failing


@pytest.mark.slow
def test_a_copy_that_never_came_changes_nothing():
    """The worker dies while it sends its shards."""
    program = PROGRAM.with_name("snapshot.py")
    found = forks.found([program], dict(os.environ))
    assert found["arrived"] == [True, False]
    assert found["now"] == found["before"]


def several(first, second):
    """The second is the dense layer's."""
    return keras.optimizers.MultiOptimizer(
        lambda variable: second if "dense" in variable.path else first
    )


def test_rates_of_optimizers_that_are_within_others():
    K = keras.optimizers
    falls = K.schedules.ExponentialDecay(0.1, 4, 0.5)
    cases = {
        K.SGD(falls): [None],
        K.LossScaleOptimizer(K.SGD(falls)): [None],
        K.LossScaleOptimizer(K.SGD(0.1)): [0.1],
    }
    if hasattr(K, "MultiOptimizer"):
        cases[several(K.SGD(0.1), K.Adam(falls))] = [0.1, None]
    for optimizer, expected in cases.items():
        model = network(optimizer)
        optimizer.build(model.trainable_variables)
        assert rates_of(model) == [r and pytest.approx(r) for r in expected]
        set_rates(model, [r and r / 2 for r in expected])
        assert rates_of(model) == [r and pytest.approx(r / 2) for r in expected]


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="newer Keras"
)
def test_fit_with_several_optimizers(strategy):
    K = keras.optimizers
    x, y = data(64)
    models = []
    for scope in (False, True):
        model = network(several(K.SGD(0.1), K.Adam(0.01)))
        if scope:
            with strategy.scope():
                model = convpar.parallelize(model, "equal")
        callbacks = [convpar.callbacks.Elastic(every="1h")] * scope
        model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
        models.append(model)
    for a, b in zip(*(m.get_weights() for m in models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


class Adversaries(keras.Model):
    """Two networks and two optimizers; nobody calls the model itself."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def compile(self, one, other):
        super().compile()
        self.one, self.other = one, other
        self.loss_metric = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_metric]

    def train_step(self, batch):
        x, y = batch
        for part, optimizer in (
            (self.first, self.one),
            (self.second, self.other),
        ):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(part.loss(y, part(x)))
            weights = part.trainable_weights
            optimizer.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
        self.loss_metric.update_state(loss)
        return {"loss": self.loss_metric.result()}


@pytest.mark.slow
def test_a_model_whose_parts_alone_are_called(strategy):
    """It is never built, and Keras does not know its optimizers."""
    x, y = data(64)
    weights = []
    for scope in (False, True):
        model = Adversaries(network(), network())
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01))
        if scope:
            with strategy.scope():
                model = convpar.parallelize(model, "equal")
        elastic = convpar.callbacks.Elastic(every=1e-3)
        model.fit(
            *(x, y),
            batch_size=16,
            epochs=2,
            shuffle=False,
            verbose=0,
            callbacks=[elastic] * scope,
        )
        assert not model.built
        weights.append(model.get_weights())
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    state = {id(v) for v in state_of(model)}
    assert {id(v) for v in model.other.variables} <= state
    # The first is of `compile`, and makes no steps.
    assert rates_of(model)[1:] == [pytest.approx(0.1), pytest.approx(0.01)]
    assert Snapshot(model).is_of(model)


def test_a_base_that_learns_from_now_on(strategy):
    """Of a model that was laid out anew in the meantime."""
    base = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.ReLU()]
    )
    base.trainable = False
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            base,
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", "mse")
    with strategy.scope():
        model = convpar.parallelize(model, "equal")
    for devices in (strategy.devices[:2], strategy.devices[:1]):
        how = HowSplit.of(model, strategy.devices)
        strategy.change_devices(devices)
        relayout(model, convpar.merge(model), how, strategy)
    assert len(model.trainable_weights) == 2
    base.trainable = True
    assert len(model.trainable_weights) == 4
