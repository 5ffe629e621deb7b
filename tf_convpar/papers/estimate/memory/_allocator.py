"""Measures a training step: memory by TensorFlow's allocator, and time.

On a GPU the allocator always counts its memory. On a CPU it does so while
oneDNN is on, which it is unless `TF_ENABLE_ONEDNN_OPTS=0`. There are two
figures:

- what it handed out, by `tf.config.experimental.get_memory_info`. A piece may
  have up to twice the bytes that were asked for, where there is no better one;
- what it was asked for, by the events that TensorFlow's profiler records.

On a CPU, tensors below 256 KiB come from the C library, and are not counted.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from tf_convpar.papers.estimate.memory._graph import variable_bytes
from tf_convpar.papers.estimate.memory._step import Memory
from tf_convpar.units import MIB

# Number of steps before those that count. They trace, make the optimizer's
# variables and fill caches.
_BEFORE = 2
# The profiler's level for the allocator's events.
_HOST_LEVEL = 3


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measured memory of a training step.

    Attributes:
        peak_bytes: The most bytes that the allocator had handed out at once.
        asked_bytes: The most bytes that it had been asked for at once.
    """

    peak_bytes: int
    asked_bytes: int

    def beside(self, estimate: Memory) -> str:
        """Both figures beside those of an estimate, in a line each."""
        return "\n".join(
            f"TensorFlow's allocator {words} {measured / MIB:.1f} MiB; "
            f"estimate {expected / MIB:.1f}, {expected / measured - 1:+.1%}"
            for words, expected, measured in (
                ("was asked for", estimate.asked_bytes, self.asked_bytes),
                ("handed out", estimate.peak_bytes, self.peak_bytes),
            )
        )


def measured_memory(
    model: Any, batch: int, optimizer: Any = None, steps: int = 5
) -> Measured:
    """Memory of a training step, as TensorFlow's allocator counts it.

    Steps differ by a tenth and more: with several threads their operations do
    not always run in the same order, nor get the same pieces of memory. So the
    figures are medians. `TF_NUM_INTEROP_THREADS=1` makes steps differ less.

    Everything in this process counts, even if it has nothing to do with the
    step: measure in a fresh process, with no other model in it.

    Args:
        model: A Keras model; see `Step`. It is compiled and trained, with
            random images and targets of zeros.
        batch: Number of images in a step.
        optimizer: An optimizer or its name; see `Step`.
        steps: Number of steps for each of the two figures.

    Returns:
        The bytes, which include weights, slots and the batch.

    Raises:
        RuntimeError: The allocator does not count its memory.
    """
    import tensorflow as tf

    device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    run = _Runner(model, batch, optimizer)
    for _ in range(_BEFORE):
        run()
    peaks = []
    for _ in range(steps):
        try:
            tf.config.experimental.reset_memory_stats(device)
            run()
            info = tf.config.experimental.get_memory_info(device)
        except ValueError as error:
            raise RuntimeError(
                f"Expected TensorFlow's allocator of {device} to keep books. "
                f"Received: {error} On a CPU it does while oneDNN is on: unset "
                "TF_ENABLE_ONEDNN_OPTS."
            ) from error
        peaks.append(int(info["peak"]))
    if not max(peaks):
        raise RuntimeError(
            f"Expected TensorFlow's allocator of {device} to have handed out "
            "something. Received: 0 bytes. It counts nothing where oneDNN is "
            "off (TF_ENABLE_ONEDNN_OPTS=0), nor tensors below 256 KiB."
        )
    before = run.persistent_bytes()
    asked = [before + _most_asked(run, device) for _ in range(steps)]
    return Measured(_median(peaks), _median(asked))


def measured_step_s(
    model: Any, batch: int, optimizer: Any = None, steps: int = 3
) -> float:
    """Median seconds of a training step.

    Args:
        model: A Keras model. It is compiled and trained; see `measured_memory`.
        batch: Number of images in a step.
        optimizer: An optimizer or its name; see `Step`.
        steps: Number of steps that are timed.
    """
    run = _Runner(model, batch, optimizer)
    for _ in range(_BEFORE):
        run()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return _median(times)


class _Runner:
    """Runs one training step at each call, and waits for it."""

    def __init__(self, model: Any, batch: int, optimizer: Any) -> None:
        import keras
        import tensorflow as tf

        if optimizer is None:
            optimizer = getattr(model, "optimizer", None) or "sgd"
        chosen = keras.optimizers.get(optimizer)
        # A new optimizer, because the given one may have served another model.
        chosen = chosen.__class__.from_config(chosen.get_config())
        outputs = keras.tree.flatten(model.outputs)
        model.compile(chosen, loss=["mse"] * len(outputs), jit_compile=False)
        self._model = model
        self._images = [
            tf.cast(tf.random.uniform((batch, *x.shape[1:])), x.dtype)
            for x in model.inputs
        ]
        self._targets = [
            tf.zeros((batch, *y.shape[1:]), y.dtype) for y in outputs
        ]

    def __call__(self) -> Any:
        images, targets = self._images, self._targets
        return self._model.train_on_batch(
            images[0] if len(images) == 1 else images,
            targets[0] if len(targets) == 1 else targets,
        )

    def persistent_bytes(self) -> int:
        """Bytes that are in memory both before a step and after it."""
        kept = (*self._model.variables, *self._model.optimizer.variables)
        return sum(map(variable_bytes, (*kept, *self._images, *self._targets)))


def _most_asked(run: Callable[[], Any], device: str) -> int:
    """The most bytes asked for and not given back at once, during a step."""
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_HOST_LEVEL, python_tracer_level=0
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        try:
            run()
        finally:
            tf.profiler.experimental.stop()
        events = sorted(
            event
            for file in pathlib.Path(folder).rglob("*.xplane.pb")
            for event in _events(file.read_bytes(), device)
        )
    now = most = 0
    for _, size in events:
        now += size
        most = max(most, now)
    return most


def _events(trace: bytes, device: str) -> Iterator[tuple[int, int]]:
    """Times in picoseconds, and the bytes asked for (given back: negative)."""
    from tf_convpar.timeline import Space

    for plane in Space.FromString(trace).planes:
        names = {e.key: e.value.name for e in plane.event_metadata}
        stats = {s.key: s.value.name for s in plane.stat_metadata}
        signs: dict[int, int] = collections.defaultdict(int)
        for key, name in names.items():
            if name in ("MemoryAllocation", "MemoryDeallocation"):
                signs[key] = 1 if name == "MemoryAllocation" else -1
        for line in plane.lines:
            for event in line.events:
                sign = signs[event.metadata_id]
                if not sign:
                    continue
                values = {stats[s.metadata_id]: s for s in event.stats}
                where = values["allocator_name"]
                name = where.str_value or stats.get(where.ref_value, "")
                if name.startswith("GPU") != device.startswith("GPU"):
                    continue
                size = values["requested_bytes"]
                yield (
                    1000 * line.timestamp_ns + event.offset_ps,
                    sign * (size.int64_value or size.uint64_value),
                )


def _median(values: Any) -> Any:
    return sorted(values)[len(values) // 2]
