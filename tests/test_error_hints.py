"""Errors of TensorFlow say what a new user can do about them."""

from pathlib import Path

import forks
import keras
import pytest
import tensorflow as tf
from processes import environment

import tf_convpar as convpar
from tf_convpar.cluster import error_hints

PROGRAM = Path(__file__).parent / "programs" / "error_hints.py"


def made_in(strategy):
    with strategy.scope():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def test_two_strategies(strategy):
    other = convpar.ConvParallelStrategy(devices=["CPU:0", "CPU:1"])
    plain = tf.distribute.OneDeviceStrategy("CPU:0")
    for outer, inner in (
        (strategy, other),
        (strategy, plain),
        (plain, strategy),
    ):
        with outer.scope(), pytest.raises(RuntimeError) as raised:
            made_in(inner)
        assert str(raised.value).startswith("Mixing different")
        assert str(raised.value).endswith(error_hints.MIXED)


def test_strategies_of_others_are_as_they_were():
    plain = tf.distribute.OneDeviceStrategy("CPU:0")
    other = tf.distribute.OneDeviceStrategy("CPU:1")
    with plain.scope(), pytest.raises(RuntimeError) as raised:
        made_in(other)
    assert error_hints.MIXED not in str(raised.value)


@pytest.mark.slow
def test_what_was_made_before_and_a_lost_worker():
    """In a cluster of two real tasks."""
    found = forks.found([PROGRAM], environment())
    for name in ("generator", "dropout"):
        error = found[name]
        assert error.startswith("InvalidArgumentError"), error
        assert "Client for target" in error
        assert error.count(error_hints.MADE_BEFORE) == 1
    assert found["lost"].startswith("UnavailableError")
    assert found["lost"].count(error_hints.LOST) == 1


def test_other_errors_stay_as_they_are():
    error_hints.of_clusters()
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))
    assert "ConvParallelStrategy" not in str(raised.value)
