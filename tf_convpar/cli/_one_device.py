"""Times a model's training step on one device, plain and with `"auto"`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

# Rounds of a step of each side, and the seconds after which there is none
# more, so that large models do not take minutes.
_ROUNDS, _LONGEST_S = 5, 20.0


def step(
    model: Any, batch: int, report: Callable[[str], None] = lambda _: None
) -> dict[str, float]:
    """Times of a step of plain Keras, and with `algorithm="auto"`.

    ```python
    times = step(keras.applications.MobileNetV2(weights=None), batch=16)
    times["gain"]  # how many times as fast as plain Keras
    ```

    Both sides learn zeros from noise, by stochastic gradient descent, and take
    turns, step by step. Keras is without XLA, with which it was slower in seven
    of the eight comparisons of `benchmarks/algorithms`.

    Args:
        model: A Keras model, built. It stays as it is.
        batch: Images of a step.
        report: Function that is called with what is being done.

    Returns:
        Medians in ms, after the first step, which traces; and the median of
        their ratio within a round.
    """
    import keras

    import tf_convpar as convpar

    report("plain Keras, first step")
    plain = _steps(keras.models.clone_model(model), batch)
    plain()
    report("parallel, first step")
    parallel = convpar.parallelize(model, algorithm="auto", verbose=False)
    auto = _steps(parallel, batch)
    auto()
    times: list[tuple[float, float]] = []
    start = time.monotonic()
    while len(times) < _ROUNDS:
        report(f"steps, round {len(times) + 1} of {_ROUNDS}")
        times.append((plain(), auto()))
        if time.monotonic() - start > _LONGEST_S:
            break
    keras_s, auto_s = map(statistics.median, zip(*times, strict=True))
    return {
        "keras_ms": keras_s * 1e3,
        "auto_ms": auto_s * 1e3,
        "gain": statistics.median(a / b for a, b in times),
    }


def _steps(model: Any, batch: int) -> Callable[[], float]:
    """A function that makes a training step, and returns its seconds."""
    import keras
    import tensorflow as tf

    from tf_convpar.planner.measure import noise

    losses = ["mse"] * len(model.outputs)
    model.compile(
        "sgd", losses if len(losses) > 1 else losses[0], jit_compile=False
    )
    if isinstance(model, keras.Sequential):
        (outputs,) = model.outputs
    else:
        outputs = model.output
    x = noise(model, batch)
    y = keras.tree.map_structure(
        lambda t: tf.zeros((batch, *t.shape[1:])), outputs
    )
    y = tuple(y) if isinstance(y, list) else y
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()

    def make() -> float:
        start = time.perf_counter()
        float(model.train_function(batches)["loss"])
        return time.perf_counter() - start

    return make
