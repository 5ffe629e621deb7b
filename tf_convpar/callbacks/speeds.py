"""Measures how fast devices are now, by a convolution on each."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import tensorflow as tf

# Seconds that a measurement should take, and how many make up a look.
_SPAN_S, _TIMES = 0.02, 3
_IMAGES, _KERNEL = (4, 28, 28, 32), (3, 3, 32, 32)
_MOST = 1000


class Speeds:
    """Measures devices again and again, beside nothing else of this program.

    ```python
    speeds = Speeds()
    before = speeds.seconds("/device:CPU:0")
    speeds.seconds("/device:CPU:0") / before  # how much slower it is now
    ```
    """

    def __init__(self) -> None:
        # Repetitions of the convolution on each device, measured once.
        self._counts: dict[str, int] = {}

    def seconds(self, device: str) -> float:
        """Median of what the same work takes, in seconds.

        Raises:
            tf.errors.OpError: The device is not there.
        """
        work = _work(device)
        if device not in self._counts:
            work(tf.constant(1)).numpy()
            count = 1
            # A single convolution takes mostly the time of the call. The least
            # of a few times is not disturbed by other programs.
            while (
                duration := _least(work, count)
            ) < _SPAN_S / 2 and count < _MOST:
                count *= 2
            self._counts[device] = max(1, round(count * _SPAN_S / duration))
        count = self._counts[device]
        return statistics.median(_timed(work, count) for _ in range(_TIMES))


def _least(work: Any, count: int) -> float:
    return min(_timed(work, count) for _ in range(_TIMES))


def _timed(work: Any, count: int) -> float:
    start = time.perf_counter()
    work(tf.constant(count)).numpy()
    return time.perf_counter() - start


@functools.cache
def _work(device: str) -> Any:
    """Repeats a convolution on a device; only one number travels."""

    def run(count: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            kernel = tf.fill(_KERNEL, 1 / 288)
            result = tf.while_loop(
                lambda i, x: i < count,
                lambda i, x: (i + 1, tf.nn.conv2d(x, kernel, 1, "SAME")),
                [tf.constant(0), tf.ones(_IMAGES)],
                parallel_iterations=1,
            )
            return tf.reduce_sum(result[1])

    return tf.function(run, autograph=False)
