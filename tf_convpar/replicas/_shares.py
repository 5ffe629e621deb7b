"""How many samples each replica's step has.

Replicas that wait for one another should take as long as one another. So the
steps of all are timed, all at once, since devices of one machine share its
cores, with few samples and with many: what one more sample takes, and what a
step takes however few there are. A step has the device's own part of the
exchange too (packing and coding), which takes a slow device longer. Batches
follow; who would get less than a sample is left out.
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
from tf_convpar.replicas._replica import Replica
from tf_convpar.replicas._wire import Wire

AUTO = "auto"
# Timed steps of each replica, after one that is not.
_STEPS = 3


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

    Returns:
        Shares, whose sum is 1; equal ones if they differ by a tenth at most.
        0 is for a replica that would end a step of one sample later than the
        others end theirs.
    """
    sizes = sizes_to_time(total, len(replicas))
    steps = [_step(replica, sample, sizes, wire) for replica in replicas]
    return of_steps(steps, total)


def of_steps(steps: Sequence[Callable[[int], Any]], total: int) -> list[float]:
    """Shares with which functions of so many samples take equally long."""
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
) -> Callable[[int], Any]:
    """A step of one of these numbers of samples, all of them alike.

    Each is traced by itself, as the steps of `fit` are: where the number is
    unknown, each convolution looks for its algorithm while it runs.
    """
    first = keras.tree.map_structure(
        lambda a: tf.convert_to_tensor(a)[:1], sample
    )

    @tf.function(autograph=False)
    def step(batch: int) -> tf.Tensor:
        with tf.device(replica.device):
            data = keras.tree.map_structure(
                lambda a: tf.tile(a, [batch, *[1] * (a.shape.rank - 1)]), first
            )
            gradient = replica.gradient(data)
            made = tf.nest.flatten(gradient, expand_composites=True)
            if wire:
                made.append(_exchanged(replica, gradient, wire))
            # So little returns that it takes no time.
            with tf.control_dependencies(made):
                return tf.constant(batch)

    # One after another: Keras' tracing is not safe for threads.
    for size in sorted(set(sizes)):
        step.get_concrete_function(size)
    return lambda batch: step(batch).numpy()


def _at_once(
    steps: Sequence[Callable[[int], Any]], batches: Sequence[int]
) -> list[list[float]]:
    """Seconds of each step, several times, while the others are under way."""
    seconds: list[list[float]] = [[] for _ in steps]
    failed: list[BaseException] = []
    warm = threading.Barrier(len(steps))

    def measure(i: int) -> None:
        try:
            steps[i](batches[i])
            warm.wait()
            # Who is ready goes on: else the last would have cores for itself.
            while not failed and min(map(len, seconds)) < _STEPS:
                start = time.perf_counter()
                steps[i](batches[i])
                seconds[i].append(time.perf_counter() - start)
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
