"""`Monitor`: what a training does now, for `convpar top` and TensorBoard."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_convpar import files
from tf_convpar import machines
from tf_convpar.cluster.spec import is_loopback
from tf_convpar.files import DeviceNow
from tf_convpar.files import Running
from tf_convpar.strategy.calls import at_end_of_call
from tf_convpar.strategy.strategy import ConvParallelStrategy
from tf_convpar.units import interval


class Monitor(keras.callbacks.Callback):
    """Says, while `fit` runs, what each device does.

    ```python
    model.fit(x, y, callbacks=[convpar.callbacks.Monitor("logs")])
    # and in another terminal: convpar top
    ```

    It says how busy the cores of each task are, how many bytes a second its
    machine receives and sends (those of other programs are among them), how
    long a step takes, and losses and metrics. Asking takes a millisecond or
    two for each device, once a second.

    Args:
        log_dir: A folder for TensorBoard, which shows the same as scalars;
            None for none.
        every: Time between two looks, in seconds or as `"5s"`.

    Raises:
        ValueError: `every` is no time.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        every: float | str = "1s",
    ) -> None:
        super().__init__()
        self.log_dir = log_dir
        self.every_s = interval("every", every)
        self._writer: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Reads the counters for the first time."""
        self._began_s = time.time()
        self._step = 0
        self._epoch = 1
        self._writes_state = True
        at_end_of_call(self.on_train_end)
        self._step_times: list[float] = []
        if self.log_dir is not None:
            self._writer = tf.summary.create_file_writer(str(self.log_dir))
        self._last = self._read_counters()
        self._looked = self._mark = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch; what is between two is part of no step."""
        self._epoch = epoch + 1
        self._mark = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the time of the step, and reports when it is time."""
        now = time.perf_counter()
        self._step_times.append(now - self._mark)
        self._mark = now
        self._step += 1
        if now - self._looked >= self.every_s:
            self._report(logs or {})
            # This time is part of no step.
            self._mark = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        """Removes the state that `convpar top` shows."""
        files.remove_state(os.getpid())
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _devices(self) -> list[str]:
        strategy = self.model.distribute_strategy
        if isinstance(strategy, ConvParallelStrategy):
            return list(strategy.devices)
        return [device.name for device in tf.config.list_logical_devices("CPU")]

    def _read_counters(self) -> dict[str, _Counters]:
        cluster = getattr(self.model.distribute_strategy, "cluster", None)
        # Tasks of one machine send nothing to others.
        loopback = cluster is not None and is_loopback(cluster.chief.address)
        return {
            name: (
                machines.processor_s(name),
                machines.network_bytes(name, loopback),
            )
            for name in self._devices()
        }

    def _report(self, logs: dict[str, Any]) -> None:
        latest = self._read_counters()
        now = time.perf_counter()
        passed_s, self._looked = now - self._looked, now
        running = Running(
            pid=os.getpid(),
            began_s=self._began_s,
            written_s=time.time(),
            model=self.model.name,
            epoch=self._epoch,
            step=self._step,
            step_s=statistics.median(self._step_times),
            # Some metrics are vectors: a value for each class.
            logs={n: float(v) for n, v in logs.items() if np.ndim(v) == 0},
            devices=tuple(
                _device_now(name, self._last.get(name), counters, passed_s)
                for name, counters in latest.items()
            ),
        )
        self._last, self._step_times = latest, []
        if self._writes_state:
            try:
                files.write_state(running)
            except OSError as error:
                self._writes_state = False
                # No reason to lose a training.
                warnings.warn(
                    f"`convpar top` will not see this training: {error}.",
                    RuntimeWarning,
                    stacklevel=1,
                )
        if self._writer is not None:
            with self._writer.as_default(step=self._step):
                _write_scalars(running)


# DATA_CLASS_SCALAR of tensorflow/core/framework/summary.proto.
_SCALAR = 1
# Seconds of processors, and bytes received and sent, until now.
_Counters = tuple[float | None, tuple[int, int] | None]


def _device_now(
    name: str, before: _Counters | None, now: _Counters, passed_s: float
) -> DeviceNow:
    busy = received = sent = None
    if before is not None:
        used, bytes_now = now
        used_before, bytes_before = before
        on_cores = machines.kind_of(name) == "CPU"
        if on_cores and used is not None and used_before is not None:
            cores = passed_s * machines.threads(name)
            # The system counts in hundredths of a second.
            busy = min(1.0, max(0.0, used - used_before) / cores)
        if bytes_now is not None and bytes_before is not None:
            received, sent = (
                (b - a) / passed_s
                for a, b in zip(bytes_before, bytes_now, strict=True)
            )
    return DeviceNow(machines.short(name), busy, received, sent)


def _write_scalars(running: Running) -> None:
    _write("step/seconds", running.step_s)
    for name, value in running.logs.items():
        _write(f"step/{name}", value)
    for device in running.devices:
        place = device.name.replace(" ", "_").replace(":", "_")
        for label, number, unit in (
            ("busy", device.busy, 1.0),
            ("waiting", device.busy and 1 - device.busy, 1.0),
            ("received_MB_per_s", device.received, 1e6),
            ("sent_MB_per_s", device.sent, 1e6),
        ):
            if number is not None:
                _write(f"{label}/{place}", number / unit)
    with contextlib.suppress(tf.errors.OpError):
        tf.summary.flush()


def _write(tag: str, value: float) -> None:
    """Writes a scalar; `tf.summary.scalar` asks for TensorBoard to do so."""
    metadata = tf.compat.v1.SummaryMetadata(data_class=_SCALAR)
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)
