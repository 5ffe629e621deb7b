"""Times algorithms side by side, on the device that they are for.

The noise of a shared machine comes in bursts: the first algorithm may suffer
from another program's burst, and the next may not. So algorithms take turns,
each round in another order, and are compared round by round.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._algorithm import FORWARD
from tf_convpar.algorithms._algorithm import INPUT_GRADIENT
from tf_convpar.algorithms._algorithm import KERNEL_GRADIENT
from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry

FEWEST_ROUNDS = 3
_MOST_ROUNDS = 25
# A shorter sample says more about the clock and the dispatch than the pass.
_SAMPLE_S = 2e-3
# An algorithm leaves the race after one round, or after two, if its best time
# is more than this many times the best of all. Its best time counts because a
# burst of another program may have hit it once. The race ends when all are
# slower than direct by the factor `_BEHIND`.
_HOPELESS = (3.0, 2.0)
_BEHIND = 1.1
# A run that is longer than this averages over bursts. One round then says much:
# who is behind stays behind, and direct may leave the race like any other.
_LONG_S = 0.1
_HOPELESS_IF_LONG = (2.0, 1.3)

# Called with a few words that say how far a measurement is.
Report = Callable[[str], None]
Times = list[list[float]]


def race(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
    budget_s: float,
    report: Report,
    budget_factor: Callable[[Times], float],
) -> Times:
    """Seconds of each algorithm in each round.

    Works wherever a layer may be called: it leaves the graph that is being
    traced, and takes no part in tapes. On a remote device the operands are
    made there, and only one number of the result travels.

    Args:
        algorithms: Algorithms to compare, direct first. None of them may
            refuse the pass.
        geometry: Shape of the convolution, whose image and batch are known.
        which: Name of the pass.
        device: Name of the device.
        budget_s: Seconds for all rounds. Three rounds are run even where they
            take longer.
        report: Called often, between runs, with a few words.
        budget_factor: Takes the times so far, and returns how many times the
            budget may be spent.

    Returns:
        One list for each algorithm, whose element i is from round i. A list
        ends early where the algorithm was left behind. Direct's list does so
        only where runs are long.
    """
    with tf.init_scope():
        return rounds(
            runners(algorithms, geometry, which, device),
            budget_s,
            report,
            budget_factor,
        )


def runners(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[Callable[[], Any]]:
    """Functions that each compute the pass once and wait for it; see `race`."""
    with tf.device(device):
        operands = _operands(geometry, which)
        return [
            _runner(algorithm, geometry, which, operands, device)
            for algorithm in algorithms
        ]


def rounds(
    runs: Sequence[Callable[[], Any]],
    budget_s: float,
    report: Report = lambda text: None,
    budget_factor: Callable[[Times], float] = lambda times: 1.0,
) -> Times:
    """Times `runs` in turn until it is clear who wins, or time is spent.

    See `race`.
    """
    first_times = []
    for run in runs:
        report("first round")
        # The first run never counts, however long it is. In virtual machines,
        # memory that is used for the first time costs seconds per GiB: 959 ms
        # were measured for a winograd:5 that takes 201 ms.
        first_times.append(_timed(run, 1))
    long_runs = min(first_times) > _LONG_S
    repeats = 1
    if not long_runs:
        repeats = int(_SAMPLE_S / max(_timed(runs[0], 1), 1e-6))
        repeats = max(1, min(20, repeats))
    times: Times = [[] for _ in runs]
    racing = list(range(len(runs)))
    start = time.perf_counter()
    while max(map(len, times)) < _MOST_ROUNDS:
        done = max(map(len, times))
        first = done % len(racing)
        for i in (*racing[first:], *racing[:first]):
            report(f"round {done + 1}")
            times[i].append(_timed(runs[i], repeats))
        if done < len(_HOPELESS):
            limits = _HOPELESS_IF_LONG if long_runs else _HOPELESS
            hopeful = _hopeful(racing, times, limits[done])
            racing = hopeful if long_runs else sorted({0, *hopeful})
        if done + 1 < FEWEST_ROUNDS and racing != [0]:
            continue
        direct = median(times[0])
        if all(median(times[i]) > _BEHIND * direct for i in racing if i):
            break
        if time.perf_counter() - start > budget_s * budget_factor(times):
            break
    return times


def _hopeful(racing: Sequence[int], times: Times, most: float) -> list[int]:
    """Indices of the runs whose best time is at most `most` times the best."""
    limit = most * min(min(t) for t in times if t)
    return [i for i in racing if min(times[i]) <= limit]


def relative_errors(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[float | str]:
    """Relative error of each algorithm against the first in float64.

    The first algorithm is direct; its own error is among the results. Errors
    are measured on a part of the work in which no sum is shorter, if possible:
    rounding errors grow with the length of the sums.

    Returns:
        For each algorithm the norm of the difference, relative to the norm of
        the result; or, where it fails, as on a worker without compiled ops, the
        error as a string.
    """
    part = sample(geometry, which)
    exact = dataclasses.replace(part, dtype="float64")
    errors: list[float | str] = []
    with tf.init_scope(), tf.device(device):
        operands = _operands(part, which)
        wide = [tf.cast(operand, tf.float64) for operand in operands]
        expected = _apply(algorithms[0], exact, which, wide)
        for algorithm in algorithms:
            try:
                run = _error_of(algorithm, part, which, device)
                errors.append(float(_traced(run, *operands, expected)()))
            except tf.errors.OpError as error:
                if algorithm is algorithms[0]:
                    raise
                # The cause is at the end, after the places it came through.
                cause = " ".join(error.message.split())[-300:]
                errors.append(f"{type(error).__name__}: {cause}")
    return errors


def sample(geometry: Geometry, which: str) -> Geometry:
    """A part of the convolution that takes milliseconds in float64."""
    # Narrower floats are transformed in float32: errors are those of float32.
    dtype = "float64" if geometry.dtype == "float64" else "float32"
    if which == KERNEL_GRADIENT:
        # This pass sums over images and pixels: few channels and filters do.
        part = dataclasses.replace(
            geometry,
            channels=min(geometry.channels, 4),
            filters=min(geometry.filters, 4),
            dtype=dtype,
        )
        batch = geometry.batch or 1
        fit = int(1e8 * batch // max(part.multiplications, 1))
        return dataclasses.replace(part, batch=max(1, min(batch, fit)))
    most = {1: 1024, 2: 48, 3: 16}[len(geometry.window)]
    image = tuple(
        min(n or most, most + window)
        for n, window in zip(geometry.image, geometry.window, strict=True)
    )
    part = dataclasses.replace(geometry, image=image, batch=1, dtype=dtype)
    # The axis that the pass does not sum over.
    axis = "channels" if which == INPUT_GRADIENT else "filters"
    width = getattr(geometry, axis)
    fit = max(1, min(8, int(5e7 * width // max(part.multiplications, 1))))
    return dataclasses.replace(part, **{axis: min(width, fit)})


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def _operands(geometry: Geometry, which: str) -> list[tf.Tensor]:
    """The two arguments of a pass: uniform numbers of mean 0 and variance 1."""
    x = (geometry.batch, *geometry.image, geometry.channels)
    kernel = (*geometry.window, geometry.channels, geometry.filters)
    dy = (geometry.batch, *geometry.output, geometry.filters)
    shapes = {FORWARD: (x, kernel), INPUT_GRADIENT: (dy, kernel)}
    wide = 3**0.5
    return [
        # Normal numbers take several times as long to make.
        tf.cast(
            tf.random.stateless_uniform(shape, (1, i), -wide, wide),
            geometry.dtype,
        )
        for i, shape in enumerate(shapes.get(which, (x, dy)))
    ]


def _apply(
    algorithm: Algorithm,
    geometry: Geometry,
    which: str,
    operands: Sequence[tf.Tensor],
) -> tf.Tensor:
    a, b = operands
    if which == FORWARD:
        return algorithm.forward(a, b, geometry)
    if which == INPUT_GRADIENT:
        shape = [geometry.batch, *geometry.image, geometry.channels]
        return algorithm.input_gradient(a, b, geometry, shape)
    return algorithm.kernel_gradient(a, b, geometry)


def _runner(
    algorithm: Algorithm,
    geometry: Geometry,
    which: str,
    operands: Sequence[tf.Tensor],
    device: str,
) -> Callable[[], Any]:
    def compute(*operands: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            result = _apply(algorithm, geometry, which, operands)
            # One number is cheap to send, and needs all to be computed.
            return tf.reshape(result, [-1])[0]

    return _traced(compute, *operands)


def _error_of(
    algorithm: Algorithm, geometry: Geometry, which: str, device: str
) -> Callable[..., tf.Tensor]:
    def compute(a: tf.Tensor, b: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            result = _apply(algorithm, geometry, which, [a, b])
            difference = tf.cast(result, tf.float64) - expected
            return tf.norm(difference) / tf.norm(expected)

    return compute


def _traced(
    compute: Callable[..., tf.Tensor], *operands: tf.Tensor
) -> Callable[[], Any]:
    # Traced once, by itself: TensorFlow would warn that functions which are
    # made again and again are traced again and again.
    function = tf.function(compute, autograph=False)
    concrete = function.get_concrete_function(*operands)
    return lambda: concrete(*operands).numpy()


def _timed(run: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


class StatusLine:
    """A line on the terminal once measuring has taken two seconds in all.

    ```python
    with StatusLine("14x14x500 -> 1500") as report:
        report("winograd:4")
    ```

    The line is on stderr and disappears at the end. There is none where stderr
    is no terminal.
    """

    PATIENCE_S = 2.0
    _spent_s = 0.0

    def __init__(self, title: str) -> None:
        self._title = title
        self._live: Any = None

    def __enter__(self) -> Report:
        self._start = time.perf_counter()
        return self._report

    def __exit__(self, *exception: object) -> None:
        StatusLine._spent_s += time.perf_counter() - self._start
        if self._live is not None:
            self._live.stop()

    def _report(self, text: str) -> None:
        spent = StatusLine._spent_s + time.perf_counter() - self._start
        if spent < self.PATIENCE_S or not sys.stderr.isatty():
            return
        line = f"Measuring convolution algorithms: {self._title}, {text}"
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            # Without a thread that draws, which would be measured too.
            self._live = Live(
                line,
                console=Console(stderr=True, markup=False, highlight=False),
                auto_refresh=False,
                transient=True,
            )
            self._live.start()
        self._live.update(line, refresh=True)
