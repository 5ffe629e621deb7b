"""What travels between devices, and what that costs the chief."""

from __future__ import annotations

import functools
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
# Of 1024 by 1024: longer than the transfers beside them.
_PRODUCTS = 6
# Small ones, on their way at once.
_MESSAGES = 100


def measure_link(source: str, target: str, clock: Clock) -> Link:
    """Latency and rate of one direction, by tensors small and large.

    ```python
    measure_link(chief, worker, Clock())
    ```

    A function takes a tensor that lies on `source`, and of what arrives on
    `target` one number returns to this process. What the same costs with a
    tensor that is there already is taken off.
    """
    name = f"{source} -> {target}"
    nothing = clock.time(_move(target, target, 4), f"{name}: empty call")
    small = clock.time(_move(source, target, 4), f"{name}: latency")
    latency = max(small - nothing, 1e-6)
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


def transfer_s(chief: str, others: Sequence[str], clock: Clock) -> float:
    """Seconds by which a byte that travels holds up what the chief computes.

    The chief multiplies matrices, alone and while a tensor goes to another
    device and comes back: its processor also copies what is sent, and finds
    less of its own in the caches.
    """
    if not others:
        return 0.0
    size = 8 << 20
    with tf.device(chief):
        x = tf.zeros([size // 4])
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

    def seconds(travels: bool) -> float:
        concrete = tf.function(
            functools.partial(work, travels=travels), autograph=False
        ).get_concrete_function(x, a)
        name = f"{chief}: computes{' and sends' * travels}"
        return clock.time(lambda: concrete(x, a).numpy(), name)

    alone = seconds(False)
    return max(0.0, seconds(True) - alone) / (2 * size)


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


def _move(source: str, target: str, size: int) -> Callable[[], Any]:
    with tf.device(source):
        x = tf.zeros([size // 4])

    def move(x: tf.Tensor) -> tf.Tensor:
        with tf.device(target):
            return tf.identity(x)[0]

    concrete = tf.function(move, autograph=False).get_concrete_function(x)
    return lambda: concrete(x).numpy()
