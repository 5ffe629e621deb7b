"""Steps that a replica makes by itself, many of them in one call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_convpar.cluster.joining import step
from tf_convpar.placement import on_device
from tf_convpar.replicas.replica import Replica


@dataclasses.dataclass(frozen=True)
class StepsRun:
    """What a replica did in one call of its local steps.

    Attributes:
        steps: Number of steps.
        seconds: How long they took, by its own clock.
        metrics: State of its metrics since the epoch began.
    """

    steps: int
    seconds: float
    metrics: Any


class LocalSteps:
    """The loop of a replica, on its device: nothing travels between steps.

    Args:
        replica: It steps with its own optimizer.
        chief: Device of the program, which gets what is logged.
    """

    def __init__(self, replica: Replica, chief: str) -> None:
        self._replica = replica
        self._chief = chief
        self._function = tf.function(self._steps, autograph=False)

    def trace(self, example: Any) -> None:
        """Makes the function: Keras' tracing is not safe for threads."""
        self._function.get_concrete_function(*_limits(0, 0.0, 0.0), example)

    def run(
        self,
        steps: int,
        seconds: float,
        eta: float,
        feed: Callable[[Replica], Any],
    ) -> StepsRun:
        """Steps until there are enough, or until time is over.

        Args:
            steps: How many are enough.
            seconds: After which none begins any more.
            eta: The learning rate.
            feed: Gives what a step gets: a batch, or the replica's iterator.
        """
        if isinstance(self._replica.data, tf.data.Iterator):
            return self._call(steps, seconds, eta, feed(self._replica))
        if not steps:
            return StepsRun(0, 0.0, self._replica.metrics.read_value().numpy())
        # The chief has the data: a call for each step.
        begin = time.perf_counter()
        calls: list[StepsRun] = []
        while len(calls) < steps and (
            not calls or time.perf_counter() - begin < seconds
        ):
            calls.append(self._call(1, seconds, eta, feed(self._replica)))
        return StepsRun(
            sum(run.steps for run in calls),
            time.perf_counter() - begin,
            calls[-1].metrics,
        )

    def _call(
        self, steps: int, seconds: float, eta: float, data: Any
    ) -> StepsRun:
        with step():
            count, took, metrics = self._function(
                *_limits(steps, seconds, eta), data
            )
            return StepsRun(int(count), float(took), metrics.numpy())

    def _steps(
        self, steps: tf.Tensor, seconds: tf.Tensor, eta: tf.Tensor, data: Any
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        replica = self._replica
        with tf.device(replica.device):
            steps, seconds, eta = map(tf.identity, (steps, seconds, eta))
            begin = tf.timestamp()

            def goes_on(count: tf.Tensor) -> tf.Tensor:
                in_time = tf.timestamp() - begin < seconds
                return (count < steps) & (in_time | (count == 0))

            def stepped(count: tf.Tensor) -> tuple[tf.Tensor]:
                replica.descend(replica.gradient(replica.taken(data)), eta)
                return (count + 1,)

            (count,) = tf.while_loop(
                goes_on, stepped, [tf.constant(0)], parallel_iterations=1
            )
            with tf.control_dependencies([count]):
                took = tf.timestamp() - begin
                metrics = replica.metrics.read_value()
        arrives = on_device(tf.identity, self._chief)
        return arrives(count), arrives(took), arrives(metrics)


def _limits(steps: int, seconds: float, eta: float) -> tuple[tf.Tensor, ...]:
    return (
        tf.constant(steps),
        tf.constant(seconds, tf.float64),
        tf.constant(eta, tf.float32),
    )
