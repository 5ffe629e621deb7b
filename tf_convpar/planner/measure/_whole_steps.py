"""Times training steps of a whole model, as they run with a plan.

The times of single layers do not add up to a step: only a step shows what runs
at the same time, what TensorFlow or XLA fuse, a card's queue, and how long
devices wait for one another.
"""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar._compat.keras import functional_of
from tf_convpar._compat.keras import structure_of
from tf_convpar.cluster import memory
from tf_convpar.files import replace
from tf_convpar.planner._calibration import Calibration
from tf_convpar.planner._calibration import to_json
from tf_convpar.planner.measure import cache
from tf_convpar.planner.measure._own_thread import Report
from tf_convpar.planner.measure._own_thread import in_own_thread
from tf_convpar.planner.measure.clock import WIDE
from tf_convpar.planner.measure.clock import seconds_of
from tf_convpar.planner.measure.clock import settle
from tf_convpar.plans import Plan
from tf_convpar.sharding import parallelize
from tf_convpar.strategy import graphs
from tf_convpar.strategy.strategy import ConvParallelStrategy

# Steps of which the median is taken, and the seconds after which two that agree
# will do, as a `Clock` would say: another program may hold a step up for any
# time. What is compared differs by 5 %, so more are better.
_STEPS, _ENOUGH_S = 9, 10.0


def step_seconds(
    model: keras.Model,
    strategy: ConvParallelStrategy,
    plans: Sequence[Plan],
    calibration: Calibration,
    *,
    report: Report,
    **how: Any,
) -> list[float]:
    """Seconds of a training step of a model with each of several plans.

    ```python
    step_seconds(model, strategy, [plan, whole], calibration, report=print)
    ```

    A copy of the model is trained on random samples. Its loss is the mean
    square of its outputs, its optimizer the model's if that is compiled, SGD
    otherwise. XLA compiles the steps if it would compile those of `fit`. The
    result is kept in the user's cache folder.

    Args:
        model: Functional or Sequential model, built.
        strategy: Strategy whose devices are used.
        plans: Plans, which are timed one after the other.
        calibration: Calibration that the plans were made from.
        report: Function that is called with what is timed next.
        how: Other arguments of `parallelize`.

    Returns:
        The median for each plan; infinity where a device has not the memory.
    """
    file = cache.path(
        f"{model.name}-{calibration.batch}",
        (
            json.dumps(to_json(calibration)),
            [{name: plan[name] for name in plan} for plan in plans],
            getattr(model, "jit_compile", None),
            sorted(how.items()),
        ),
        "steps",
    )
    seconds = cache.find(file, _load)
    if seconds is None:
        with cache.alone(report):
            seconds = in_own_thread(
                _timed,
                *(model, strategy, plans, calibration.batch, how),
                report=report,
            )
        cache.keep(seconds, file, _save)
    return seconds


def _load(file: pathlib.Path) -> list[float]:
    return [float(seconds) for seconds in json.loads(file.read_text())]


def _save(seconds: list[float], file: pathlib.Path) -> None:
    replace(file, json.dumps(seconds).encode())


def _timed(
    model: keras.Model,
    strategy: ConvParallelStrategy,
    plans: Sequence[Plan],
    batch: int,
    how: dict[str, Any],
    report: Report,
) -> list[float]:
    inputs = keras.tree.map_structure(
        lambda x: _samples(x, batch),
        structure_of(functional_of(model) or model)[0],
    )
    medians = []
    for plan in plans:
        report(f"steps on {len(plan.used)} of {len(plan.devices)} devices")
        with strategy.scope():
            copy = parallelize(model, plan, verbose=False, **how)
            if not copy.compiled:
                copy.compile("sgd")
        steps = _Steps(copy)
        try:
            medians.append(_median(steps, inputs))
        except tf.errors.ResourceExhaustedError:
            medians.append(float("inf"))
        graphs.look()
        del copy
        vars(steps).clear()
        graphs.free(steps, strategy.devices)
        memory.trim()
    return medians


class _Steps:
    """Training steps of a model that need no labels."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        # As `fit` does: the optimizer's variables are made as the weights lie.
        model.make_train_function()
        self.run = tf.function(
            self._replica, autograph=False, jit_compile=bool(model.jit_compile)
        )

    def _replica(self, inputs: Any) -> tf.Tensor:
        # As in `fit`: elsewhere an optimizer is given merged weights.
        return self._model.distribute_strategy.run(self._step, (inputs,))

    def _step(self, inputs: Any) -> tf.Tensor:
        graphs.note(self._step)
        model = self._model
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(inputs, training=True))
            loss = tf.add_n(
                [
                    tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
                    for y in outputs
                    if y.dtype.is_floating
                ]
                + [tf.cast(extra, tf.float32) for extra in model.losses]
            )
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss


def _median(steps: _Steps, inputs: Any) -> float:
    def run() -> None:
        steps.run(inputs).numpy()

    for _ in range(2):  # Traces, and races of algorithms.
        run()
    if any("GPU" in x.device for x in keras.tree.flatten(inputs)):
        settle(run)
    seconds = [seconds_of(run), seconds_of(run)]
    while len(seconds) < _STEPS and (
        sum(seconds) < _ENOUGH_S
        or statistics.median(seconds) > (1 + WIDE) * min(seconds)
    ):
        seconds.append(seconds_of(run))
    return statistics.median(seconds)


def _samples(x: Any, batch: int) -> tf.Tensor:
    """Made-up numbers for an input; zeros if it takes no floats."""
    shape = (batch, *x.shape[1:])
    dtype = tf.as_dtype(x.dtype)
    if not dtype.is_floating:
        return tf.zeros(shape, dtype)
    numbers = np.random.default_rng(0).normal(size=shape)
    return tf.constant(numbers, dtype)
