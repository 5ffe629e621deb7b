"""How many samples each replica's step has.

Replicas that wait for one another should take as long as one another. So the
steps of all are timed, all at once, since devices of one machine share its
cores, with few samples and with many: what one more sample takes, and what a
step takes however few there are. A step has the device's own part of the
exchange too (packing and coding), which takes a slow device longer. Batches
follow; who would get hardly any is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.plans import apportioned as apportioned
from tf_convpar.plans import even_shares
from tf_convpar.plans import sizes_to_time
from tf_convpar.replicas.replica import Replica
from tf_convpar.replicas.wire import Wire

AUTO = "auto"
# Each replica's steps are timed, after one that is not, for at least so many
# steps and seconds: of a network whose step takes a millisecond, three steps
# tell nothing.
_STEPS = 3
_SECONDS = 0.2
# How long calls of many steps are: the chief, which makes them, computes too.
_CALL_S = 0.05


def checked(
    shares: Sequence[float] | str | None, replicas: int
) -> list[float] | str | None:
    """The shares that a user gave.

    Raises:
        ValueError: They are no such thing.
    """
    if shares is None or isinstance(shares, str):
        if shares in (None, AUTO):
            return shares
        raise ValueError(
            f'Expected `shares` to be "auto" or {replicas} numbers. Received: '
            f"shares={shares!r}."
        )
    if len(shares) != replicas or not all(s > 0 for s in shares):
        raise ValueError(
            f"Expected `shares` to be {replicas} numbers above 0, one for each "
            f"replica. Received: shares={tuple(shares)}."
        )
    return [float(s) for s in shares]


def balanced(
    replicas: Sequence[Replica],
    sample: tuple[Any, ...],
    total: int,
    wire: Wire | None = None,
    many_in_a_call: bool = False,
) -> list[float]:
    """Shares with which the replicas' steps take equally long.

    ```python
    balanced(replicas, (x[:1], y[:1]), 64)  # [0.667, 0.333]
    ```

    Args:
        replicas: They compute, which changes their weights, moving averages,
            random states and metrics: give ones of no further use.
        sample: Data of at least one sample, as a step gets it.
        total: Samples of all replicas' steps.
        wire: How each step's gradients travel, and weights on their way back;
            None where steps send nothing.
        many_in_a_call: Whether a device makes many steps for each call from
            the chief: what a call costs is no part of them.

    Returns:
        Shares, whose sum is 1; equal ones if others make a step shorter by a
        tenth at most. 0 is for a replica that would get less than a tenth of
        an equal share.
    """
    sizes = sizes_to_time(total, len(replicas))
    steps = [
        _step(replica, sample, sizes, wire, many_in_a_call)
        for replica in replicas
    ]
    return of_steps(steps, total)


def of_steps(
    steps: Sequence[Callable[[int], float | None]], total: int
) -> list[float]:
    """Shares with which functions of so many samples take equally long.

    They return how many seconds they took, or None: as many as the call.
    """
    few, many = sizes_to_time(total, len(steps))
    if many <= few:
        return [1 / len(steps)] * len(steps)
    short, long = (_at_once(steps, [n] * len(steps)) for n in (few, many))
    return even_shares(short, long, total)


def _exchanged(
    replica: Replica, gradient: Sequence[Any], wire: Wire
) -> tf.Tensor:
    """A replica's own work in an exchange: packing, coding, decoding.

    The wire is left out: who waits there for a slow device is not slow.
    """
    size = replica.form.weights.size
    with tf.device(replica.device):
        vector = replica.packed(gradient)
        weights = tf.convert_to_tensor(replica.weights.value)
        # The gradients of the pieces that it owns.
        message = tf.identity(wire.encode(vector))
        total = wire.decode(message, size, added_to=vector)
        # Weights stay where they are: steps would diverge while they are timed.
        message = tf.identity(wire.encode(weights, less=weights))
        weights = wire.decode(message, size, added_to=weights)
        replica.assign_pieces([weights], [size])
        return total


def _step(
    replica: Replica,
    sample: tuple[Any, ...],
    sizes: Sequence[int],
    wire: Wire | None,
    many_in_a_call: bool,
) -> Callable[[int], float | None]:
    """A step of one of these numbers of samples, all of them alike.

    Each is traced by itself, as the steps of `fit` are: where the number is
    unknown, each convolution looks for its algorithm while it runs.
    """
    first = keras.tree.map_structure(
        lambda a: tf.convert_to_tensor(a)[:1], sample
    )

    def made(batch: int, here: Any) -> list[tf.Tensor]:
        data = keras.tree.map_structure(
            lambda a: tf.tile(a, [batch, *[1] * (a.shape.rank - 1)]), here
        )
        gradient = replica.gradient(data)
        results = tf.nest.flatten(gradient, expand_composites=True)
        if wire:
            results.append(_exchanged(replica, gradient, wire))
        return results

    @tf.function(autograph=False)
    def steps(batch: int, count: tf.Tensor) -> tf.Tensor:
        """So many; so little returns that it takes no time."""
        with tf.device(replica.device):
            # Before the loop: what it reads of the chief comes in each step.
            here = keras.tree.map_structure(tf.identity, first)
            count = tf.identity(count)
            with tf.control_dependencies([count, *keras.tree.flatten(here)]):
                begin = tf.timestamp()

            def one(i: tf.Tensor) -> tuple[tf.Tensor]:
                with tf.control_dependencies(made(batch, here)):
                    return (i + 1,)

            with tf.control_dependencies([begin]):
                (done,) = tf.while_loop(
                    lambda i: i < count, one, [tf.constant(0)]
                )
            with tf.control_dependencies([done]):
                return tf.timestamp() - begin

    counts = dict.fromkeys(sizes, 1)

    def seconds(batch: int) -> float | None:
        took = float(steps(batch, tf.constant(counts[batch])).numpy())
        if not many_in_a_call:
            return None
        took /= counts[batch]
        counts[batch] = max(1, min(1000, round(_CALL_S / max(took, 1e-6))))
        return took

    # One after another: Keras' tracing is not safe for threads.
    for size in sorted(set(sizes)):
        steps.get_concrete_function(size, tf.TensorSpec([], tf.int32))
    return seconds


def _at_once(
    steps: Sequence[Callable[[int], float | None]], batches: Sequence[int]
) -> list[list[float]]:
    """Seconds of each step, several times, while the others are under way."""
    seconds: list[list[float]] = [[] for _ in steps]
    enough = [False] * len(steps)
    failed: list[BaseException] = []
    warm = threading.Barrier(len(steps))

    def measure(i: int) -> None:
        try:
            steps[i](batches[i])
            warm.wait()
            end = time.perf_counter() + _SECONDS
            # Who is ready goes on: else the last would have cores for itself.
            while not failed and not all(enough):
                start = time.perf_counter()
                took = steps[i](batches[i])
                now = time.perf_counter()
                seconds[i].append(now - start if took is None else took)
                enough[i] = len(seconds[i]) >= _STEPS and now >= end
        except BaseException as error:  # noqa: BLE001 (raised below)
            failed.append(error)
            warm.abort()

    threads = [
        threading.Thread(target=measure, args=(i,), daemon=True)
        for i in range(len(steps))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in failed:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return seconds
