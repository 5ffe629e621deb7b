"""Times algorithms side by side, on the device that they are for.

Noise of a shared machine comes in stretches: what is timed first suffers from
another's burst and what is timed next does not. So candidates take turns,
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
# A sample shorter than this says more about the clock and the dispatch.
_SAMPLE_S = 2e-3
# How much slower than the best ends the race for one, after one round and
# after two, by its best time: a burst of others may have hit it once. And how
# much slower than direct all must be for the race to end.
_HOPELESS = (3.0, 2.0)
_BEHIND = 1.1
# A run of this length averages over bursts: one round says much, who is behind
# is so for good, and direct leaves the race like any other.
_LONG_S = 0.1
_HOPELESS_IF_LONG = (2.0, 1.3)
# How many budgets are spent before doubt stays doubt.
_PATIENCE = 3

# Where a measurement stands, in a few words.
Report = Callable[[str], None]
Times = list[list[float]]


def race(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
    budget_s: float,
    report: Report,
    settled: Callable[[Times], bool],
) -> Times:
    """Seconds of each algorithm in each round; the first is direct.

    Works wherever a layer may be called: it leaves the graph that is being
    traced, and takes no part in tapes. On a remote device the operands are
    made there, and of the result one number travels.

    Args:
        algorithms: None of which refuses the pass.
        geometry: With its image and batch known.
        which: The pass.
        device: A device name.
        budget_s: For the rounds. Takes longer where three take longer.
        report: Called often, between runs.
        settled: Whether times so far leave no doubt.

    Returns:
        For each algorithm one list, element i of round i. A list ends early
        where the algorithm was left behind; direct's only where runs are
        long.
    """
    with tf.init_scope():
        return rounds(
            runners(algorithms, geometry, which, device),
            budget_s,
            report,
            settled,
        )


def runners(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[Callable[[], Any]]:
    """Functions that each make the pass once, and wait for it; see `race`."""
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
    settled: Callable[[Times], bool] = lambda times: True,
) -> Times:
    """Runs all in turn until it is clear or `budget_s` is spent; see `race`."""
    first_times = []
    for run in runs:
        report("first round")
        # Never counts, also where it is long: memory that nobody had before
        # costs seconds per GiB in virtual machines, which made winograd:5 of
        # 201 ms one of 959.
        first_times.append(_timed(run, 1))
    long = min(first_times) > _LONG_S
    repeats = 1
    if not long:
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
            limits = _HOPELESS_IF_LONG if long else _HOPELESS
            left = _hopeful(racing, times, limits[done])
            racing = left if long else sorted({0, *left})
        if done + 1 < FEWEST_ROUNDS and racing != [0]:
            continue
        direct = median(times[0])
        if all(median(times[i]) > _BEHIND * direct for i in racing if i):
            break
        spent = (time.perf_counter() - start) / budget_s
        if spent > _PATIENCE or (spent > 1 and settled(times)):
            break
    return times


def _hopeful(racing: Sequence[int], times: Times, most: float) -> list[int]:
    """Those whose best time is at most `most` times the best of all."""
    limit = most * min(min(t) for t in times if t)
    return [i for i in racing if min(times[i]) <= limit]


def relative_errors(
    algorithms: Sequence[Algorithm],
    geometry: Geometry,
    which: str,
    device: str,
) -> list[float | str]:
    """Of each algorithm against direct's result in float64, the first's too.

    Measured on a part of the work, in which no sum is cut short if that can
    be: rounding grows with its length.

    Returns:
        Norms of differences, relative to the norm of the result; what went
        wrong where an algorithm fails, as on a worker without compiled ops.
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
                # The cause stands after the places it came through.
                cause = " ".join(error.message.split())[-300:]
                errors.append(f"{type(error).__name__}: {cause}")
    return errors


def sample(geometry: Geometry, which: str) -> Geometry:
    """A part of the work that takes milliseconds in float64."""
    # Transforms are in float32 for narrower floats: that is what is judged.
    dtype = "float64" if geometry.dtype == "float64" else "float32"
    if which == KERNEL_GRADIENT:
        # That sums over images and pixels: few channels and filters do.
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
    """The middle one, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def _operands(geometry: Geometry, which: str) -> list[tf.Tensor]:
    """The two arguments of a pass, of numbers around 0, as wide as normal."""
    x = (geometry.batch, *geometry.image, geometry.channels)
    kernel = (*geometry.window, geometry.channels, geometry.filters)
    dy = (geometry.batch, *geometry.output, geometry.filters)
    shapes = {FORWARD: (x, kernel), INPUT_GRADIENT: (dy, kernel)}
    wide = 3**0.5
    return [
        # Normal ones take several times as long to make.
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
            # One number, which may travel, and for which all is computed.
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
    # Traced by itself: TensorFlow would warn that a function which is made
    # again and again is traced again and again.
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

    On stderr, gone when done, and nothing where that is no terminal.
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

            # No thread that draws: it would be measured too.
            self._live = Live(
                line,
                console=Console(stderr=True, markup=False, highlight=False),
                auto_refresh=False,
                transient=True,
            )
            self._live.start()
        self._live.update(line, refresh=True)
