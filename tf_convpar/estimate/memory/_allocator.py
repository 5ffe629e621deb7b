"""What a training step really takes, by TensorFlow's allocator and the clock.

On a CPU the allocator keeps books while oneDNN is on, which it is unless
`TF_ENABLE_ONEDNN_OPTS=0`; on a GPU always. There are two figures in them:

- what it handed out, as `tf.config.experimental.get_memory_info` says. A
  piece may have up to twice the bytes that were asked for, where there is no
  better one;
- what it was asked for, in the events that TensorFlow's profiler records.

On a CPU, tensors below 256 KiB come from the C library, and are in no book.
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

from tf_convpar.estimate.memory._graph import variable_bytes

# Steps that trace, make the optimizer's variables and fill caches.
_BEFORE = 2
# The profiler's level for the allocator's events.
_HOST_LEVEL = 3


@dataclasses.dataclass(frozen=True)
class Measured:
    """Of a training step.

    Attributes:
        peak_bytes: The most that the allocator had handed out.
        asked_bytes: The most that it had been asked for.
    """

    peak_bytes: int
    asked_bytes: int


def measured_memory(
    model: Any, batch: int, optimizer: Any = None, steps: int = 5
) -> Measured:
    """What the allocator says of a training step.

    Steps differ, by a tenth and more: with several threads their operations
    do not always run in the same order, nor find the same pieces. Medians
    count. `TF_NUM_INTEROP_THREADS=1` makes them differ less.

    Everything in this process counts, also what has nothing to do with the
    step: measure in a fresh process, with no other model in it.

    Args:
        model: As for `training_memory`. It is compiled and trained, with
            random images and targets of zeros.
        batch: Images in a step.
        optimizer: As for `training_memory`.
        steps: For each of the two figures.

    Returns:
        Bytes: weights, slots and the batch included.

    Raises:
        RuntimeError: The allocator keeps no books.
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
    """Seconds of a training step, the median of some.

    Args:
        model: As for `measured_memory`.
        batch: Images in a step.
        optimizer: As for `training_memory`.
        steps: That are timed.
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
    """Makes one training step, and waits for it."""

    def __init__(self, model: Any, batch: int, optimizer: Any) -> None:
        import keras
        import tensorflow as tf

        if optimizer is None:
            optimizer = getattr(model, "optimizer", None) or "sgd"
        chosen = keras.optimizers.get(optimizer)
        # A new one: it may have served another model.
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
        """What is there before a step and after it."""
        kept = (*self._model.variables, *self._model.optimizer.variables)
        return sum(map(variable_bytes, (*kept, *self._images, *self._targets)))


def _most_asked(run: Callable[[], Any], device: str) -> int:
    """The most bytes asked for and not given back, since the step began."""
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
    """Times, and bytes asked for (or given back, negative) then."""
    from tf_convpar.timeline import _messages

    for plane in _messages.Space.FromString(trace).planes:
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
                said = {stats[s.metadata_id]: s for s in event.stats}
                where = said["allocator_name"]
                name = where.str_value or stats.get(where.ref_value, "")
                if name.startswith("GPU") != device.startswith("GPU"):
                    continue
                size = said["requested_bytes"]
                yield (
                    1000 * line.timestamp_ns + event.offset_ps,
                    sign * (size.int64_value or size.uint64_value),
                )


def _median(values: Any) -> Any:
    return sorted(values)[len(values) // 2]
