"""Measures links between devices, and what transfers cost a processor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.placement import rows_of_all
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure.clock import Clock
from tf_convpar.planner.measure.clock import seconds_of
from tf_convpar.units import MIB

# The rate of a link is that of a tensor that takes about so many seconds to
# travel, or of a tensor of the largest size in bytes.
_TRAVEL_S = 0.1
_LARGEST = 32 << 20
_FIRST = 1 << 20
_AGAIN = 4
# Exchanges, one after the other.
_HOPS = 20
# Products of matrices of 1024 by 1024: they take longer than the transfers
# beside them.
_PRODUCTS = 6
_COPIED = 8 << 20
# Small messages that travel at the same time.
_MESSAGES = 100


def measure_link(source: str, target: str, clock: Clock) -> Link:
    """Measures the latency and the rate of one direction of a link.

    ```python
    measure_link(chief, worker, Clock())
    ```

    For the latency, both devices exchange one number many times within a
    function, as rows of statistics are in a step: of what a step sends, these
    are what devices wait for. To call a function on another machine takes
    several times as long.

    For the rate, a function sends a tensor from `source` to `target`, and one
    number of it returns to this process. The time of the same function with a
    tensor of one number is subtracted.
    """
    name = f"{source} -> {target}"
    hops = [
        clock.time(_hops(source, target, times), f"{name}: {times} hops")
        for times in (1, _HOPS)
    ]
    latency = max((hops[1] - hops[0]) / (_HOPS - 1), 1e-6)
    small = clock.time(_move(source, target, 4), f"{name}: a number")
    size = _FIRST
    while True:
        clock.report(f"{name}: {size / MIB:.0f} MiB")
        run = _move(source, target, size)
        run()  # Allocates.
        travel = max(seconds_of(run) - small, 1e-9)
        if travel >= _TRAVEL_S / 2 or size >= _LARGEST:
            break
        grow = max(2.0, min(16.0, _TRAVEL_S / travel))
        size = min(_LARGEST, int(size * grow) // 4 * 4)
    # Whatever disturbs a transfer makes it longer: the shortest one shows how
    # fast the link is.
    travel = min(travel, *(seconds_of(run) - small for _ in range(_AGAIN)))
    travel = max(travel, 1e-9)
    return Link(source, target, size / travel, latency)


def transfer_s(
    chief: str,
    others: Sequence[str],
    clock: Clock,
    bytes_per_s: float = math.inf,
) -> float:
    """Seconds by which each byte that travels delays the chief's computing.

    The chief multiplies matrices, first alone, then while a tensor goes to
    another device and comes back. Its processor also copies what is sent, and
    finds less of its own data in the caches. `bytes_per_s` is the rate of the
    link to the first of `others`. It limits the tensor's size: the tensor must
    be back before the chief is done.
    """
    if not others:
        return 0.0
    with tf.device(chief):
        a = tf.fill([1024, 1024], 1 / 1024)  # Its own square.

    def work(x: tf.Tensor, a: tf.Tensor, *, travels: bool) -> tf.Tensor:
        there = others[0] if travels else chief
        with tf.device(there):
            y = x + 1.0
        with tf.device(chief):
            back = tf.identity(y)
            for _ in range(_PRODUCTS):
                a = tf.matmul(a, a)
            return back[0] + a[0, 0]

    def seconds(travels: bool, size: int) -> float:
        with tf.device(chief):
            x = tf.zeros([size // 4])
        concrete = tf.function(
            functools.partial(work, travels=travels), autograph=False
        ).get_concrete_function(x, a)
        name = f"{chief}: computes{' and sends' * travels}"
        return clock.time(lambda: concrete(x, a).numpy(), name)

    size = int(min(_COPIED, bytes_per_s * seconds(False, 4) / 4))
    alone = seconds(False, size)
    return max(0.0, seconds(True, size) - alone) / (2 * size)


def message_s(chief: str, others: Sequence[str], clock: Clock) -> float:
    """Seconds that the devices at both ends of a link spend on a small message.

    Both exchange many numbers at the same time, as they do rows of statistics.
    This hides their latency. What is left is the work for them at both ends.
    """
    if not others:
        return 0.0
    with tf.device(chief):
        x = tf.zeros([_MESSAGES])

    def work(x: tf.Tensor, *, messages: int) -> tf.Tensor:
        numbers = []
        for device in (chief, others[0]):
            with tf.device(device):
                numbers.append(tf.unstack(tf.identity(x))[:messages])
        received = []
        for pair in zip(*numbers, strict=True):
            here, there = rows_of_all(pair, [chief, others[0]])
            with tf.device(others[0]):
                received.append(tf.add_n(there))
            with tf.device(chief):
                received.append(tf.add_n(here))
        with tf.device(chief):
            return tf.add_n(received[1::2])

    def seconds(messages: int) -> float:
        concrete = tf.function(
            functools.partial(work, messages=messages), autograph=False
        ).get_concrete_function(x)
        name = f"{chief}: {messages} messages"
        return clock.time(lambda: concrete(x).numpy(), name)

    several = seconds(_MESSAGES) - seconds(1)
    return max(0.0, several) / (2 * (_MESSAGES - 1))


def join_s(chief: str, clock: Clock) -> float:
    """Seconds that the chief takes to join, cut or add one byte."""
    pixels, width = 4096, 512
    with tf.device(chief):
        halves = [tf.ones((pixels, width // 2)) for _ in range(2)]
    native = ops.native_on("ConcatShards", chief)

    def join(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        with tf.device(chief):
            return ops.concat_shards([a, b], native=native)[0, 0]

    concrete = tf.function(join, autograph=False).get_concrete_function(*halves)
    seconds = clock.time(lambda: concrete(*halves).numpy(), f"{chief}: join")
    return seconds / (4 * pixels * width)


def _hops(source: str, target: str, times: int) -> Callable[[], Any]:
    with tf.device(source):
        x = tf.zeros([])

    def hop(x: tf.Tensor) -> tf.Tensor:
        with tf.device(target):
            y = tf.identity(x)
        for _ in range(times):
            here, there = rows_of_all([x, y], [source, target])
            with tf.device(source):
                x = tf.add_n(here)
            with tf.device(target):
                y = tf.add_n(there)
        return x

    concrete = tf.function(hop, autograph=False).get_concrete_function(x)
    return lambda: concrete(x).numpy()


def _move(source: str, target: str, size: int) -> Callable[[], Any]:
    with tf.device(source):
        x = tf.zeros([size // 4])

    def move(x: tf.Tensor) -> tf.Tensor:
        with tf.device(target):
            return tf.identity(x)[0]

    concrete = tf.function(move, autograph=False).get_concrete_function(x)
    return lambda: concrete(x).numpy()
