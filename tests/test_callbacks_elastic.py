"""`Elastic`: workers are killed in `fit`, `evaluate` and `predict`, and return.

Numbers are those of plain Keras on the same batches, as if nothing had been.
"""

import os
from pathlib import Path

import forks
import keras
import numpy as np
import pytest
from replica_cases import data
from replica_cases import network

import tf_convpar as convpar
from tf_convpar.callbacks._elastic import _seconds
from tf_convpar.sharding import HowSplit
from tf_convpar.sharding import relayout

PROGRAM = Path(__file__).parent / "programs/elastic.py"
# How the model is split; whether a worker is killed in a step of training or of
# validation, in which epoch and step; and which.
CASES = [
    ("filters", "train", 1, 0, 1),
    ("samples", "test", 0, 3, 0, 1),
]
OTHERS = [
    ("filters", "test", 1, 2, 0),
    ("samples", "train", 2, 0, 1),
    ("filters", "train", 1, 1, 0, 1),
    ("samples", "train", 1, 5, 0),
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
    split, mode, epoch, batch, *lost = case
    # In validation of the epoch; or in a step, so before its end as well.
    left = [3 - len(lost) if e in (epoch, epoch + 1) else 3 for e in range(4)]
    assert found["devices"] == left
    assert max(found["seconds"][1:]) < BOUND_S
    for name, values in found["history"].items():
        np.testing.assert_allclose(
            values, found["expected_history"][name], rtol=1e-5
        )
    for name in ("weights", "slots"):
        for a, b in zip(found[name], found[f"expected_{name}"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)
    # A worker was killed in `predict` as well.
    np.testing.assert_allclose(
        found["after"], found["expected_after"], rtol=1e-5
    )
    assert found["predicted"] < 1e-5


def test_times_of_copies():
    assert [_seconds(t) for t in (3, "30s", "5min", "1 h", "2")] == [
        *(3.0, 30.0, 300.0, 3600.0, 2.0)
    ]
    for wrong in (0, -1, "soon", "3 days", "s", None):
        with pytest.raises(ValueError, match="every.*Received"):
            convpar.callbacks.Elastic(every=wrong)


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
    assert type(whole) is keras.layers.Conv2D
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
