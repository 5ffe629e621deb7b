"""What travels between devices, and what that costs the chief."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.planner._link import Link
from tf_convpar.planner.measure._clock import Clock

# Of a tensor that takes as long as this to travel, or of the largest.
_TRAVEL_S = 0.1
_LARGEST = 32 << 20
_FIRST = 1 << 20
_AGAIN = 4
# There and back, one after the other.
_HOPS = 20
# Of 1024 by 1024: longer than the transfers beside them.
_PRODUCTS = 6
_COPIED = 8 << 20
# Small ones, on their way at once.
_MESSAGES = 100


def measure_link(source: str, target: str, clock: Clock) -> Link:
    """Latency and rate of one direction.

    ```python
    measure_link(chief, worker, Clock())
    ```

    Latency is that of a number that goes there and back many times within a
    function, as what devices exchange in a step does: to call a function on
    another machine takes several times as long. For the rate a function takes
    a tensor that lies on `source`, and of what arrives on `target` one number
    returns to this process; what the same costs with a number is taken off.
    """
    name = f"{source} -> {target}"
    hops = [
        clock.time(_hops(source, target, times), f"{name}: {times} hops")
        for times in (1, _HOPS)
    ]
    latency = max((hops[1] - hops[0]) / (2 * (_HOPS - 1)), 1e-6)
    small = clock.time(_move(source, target, 4), f"{name}: a number")
    size = _FIRST
    while True:
        run = _move(source, target, size)
        seconds = clock.time(run, f"{name}: {size / 2**20:.0f} MiB")
        travel = max(seconds - small, 1e-9)
        if travel >= _TRAVEL_S / 2 or size >= _LARGEST:
            break
        grow = max(2.0, min(16.0, _TRAVEL_S / travel))
        size = min(_LARGEST, int(size * grow) // 4 * 4)
    # Whatever disturbs a transfer makes it longer: a link is as fast as at
    # its best.
    travel = min(travel, *(_seconds(run) - small for _ in range(_AGAIN)))
    travel = max(travel, 1e-9)
    return Link(source, target, size / travel, latency)


def _seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def transfer_s(
    chief: str,
    others: Sequence[str],
    clock: Clock,
    bytes_per_s: float = math.inf,
) -> float:
    """Seconds by which a byte that travels holds up what the chief computes.

    The chief multiplies matrices, alone and while a tensor goes to another
    device and comes back: its processor also copies what is sent, and finds
    less of its own in the caches. `bytes_per_s` is the rate of the link to the
    first of the others: the tensor is to be back before the chief is done.
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
    """Seconds of the chief, and of another device, for a small message.

    Many numbers go to another device and come back at once: with their
    latency hidden what is left is the work that they are at both ends.
    """
    if not others:
        return 0.0
    with tf.device(chief):
        x = tf.zeros([_MESSAGES])

    def work(x: tf.Tensor, *, messages: int) -> tf.Tensor:
        back = []
        with tf.device(chief):
            numbers = tf.unstack(x)[:messages]
        for number in numbers:
            with tf.device(others[0]):
                number = number + 1.0
            with tf.device(chief):
                back.append(tf.identity(number))
        with tf.device(chief):
            return tf.add_n(back)

    def seconds(messages: int) -> float:
        concrete = tf.function(
            functools.partial(work, messages=messages), autograph=False
        ).get_concrete_function(x)
        name = f"{chief}: {messages} messages"
        return clock.time(lambda: concrete(x).numpy(), name)

    several = seconds(_MESSAGES) - seconds(1)
    return max(0.0, several) / (2 * (_MESSAGES - 1))


def join_s(chief: str, clock: Clock) -> float:
    """Seconds of the chief for one byte that is joined, cut or added."""
    pixels, width = 4096, 512
    with tf.device(chief):
        halves = [tf.ones((pixels, width // 2)) for _ in range(2)]

    def join(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        with tf.device(chief):
            return ops.concat_shards([a, b], axis=-1)[0, 0]

    concrete = tf.function(join, autograph=False).get_concrete_function(*halves)
    seconds = clock.time(lambda: concrete(*halves).numpy(), f"{chief}: join")
    return seconds / (4 * pixels * width)


def _hops(source: str, target: str, times: int) -> Callable[[], Any]:
    with tf.device(source):
        x = tf.zeros([])

    def hop(x: tf.Tensor) -> tf.Tensor:
        for _ in range(times):
            with tf.device(target):
                x = x + 1.0
            with tf.device(source):
                x = x + 1.0
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
