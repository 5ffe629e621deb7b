"""The demo itself: trains once on one device and once split, and compares."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import timeline
from tf_convpar.demo import data
from tf_convpar.demo.settings import Settings
from tf_convpar.demo.star import network
from tf_convpar.demo.star import plots
from tf_convpar.demo.star.reload import predict_elsewhere
from tf_convpar.demo.star.report import Report
from tf_convpar.demo.star.report import Run
from tf_convpar.demo.steps import Steps
from tf_convpar.demo.steps import byte_counter
from tf_convpar.export import export
from tf_convpar.sharding import step_traffic

# Takes the name of a part of the work and its number of pieces. Yields a
# function that is called after each piece.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]

# Steps in the picture, and steps to record: a few more, so that enough of them
# are whole.
_SHOWN_STEPS = 3
_RECORDED_STEPS = _SHOWN_STEPS + 3
# Steps of the training to record, which the end of the recording ends long
# before.
_PLENTY = 1000


def run(
    settings: Settings,
    images: data.Images,
    strategy: convpar.ConvParallelStrategy,
    progress: Progress,
) -> Report:
    """Trains twice, exports and reloads; writes all files to the output.

    ```python
    report = run(settings, data.load("digits"), strategy, progress)
    report.speedup
    ```

    Args:
        settings: What to train, and where its files go.
        images: Images to train on, and held-out ones.
        strategy: Strategy of a cluster. It must be made before anything else,
            because joining a cluster ends the life of variables.
        progress: Called with the name and the number of pieces of each part of
            the work; see `Progress`.
    """
    total, counted_on = byte_counter(t.port for t in strategy.cluster.tasks)
    with tf.device(strategy.chief_device):
        plain = network.build(keras.layers.Conv2D, settings.seed)
        before = _train(
            "on one device", plain, settings, images, total, progress
        )
    with strategy.scope():
        model = network.build(
            convpar.ConvParallel2D, settings.seed, shards=settings.shards
        )
    steps = _train("split", model, settings, images, total, progress)
    with progress("Scoring on held-out images", 2) as advance:
        one = _score(plain, before, settings, images)
        advance()
        split = _score(model, steps, settings, images)
        advance()
    with progress("Recording who computes what", 1) as advance:
        recording = _record(model, strategy, settings, images, split.step_s)
        advance()
    with progress("Exporting, and reloading elsewhere", 1) as advance:
        difference = _export(model, settings, images)
        advance()
    report = Report(
        one=one,
        split=split,
        shards={
            layer.name: _sizes(layer, strategy.devices)
            for layer in model.layers
            if isinstance(layer, convpar.ConvParallel2D)
        },
        measured_bytes=steps.median_bytes,
        counted_on=counted_on,
        theory_bytes=step_traffic(model, settings.batch_size).total,
        export_difference=difference,
        wire_dtype=settings.wire_dtype or "float32",
        cores=settings.cores,
    )
    plots.draw_losses(report, settings.output / "losses.png")
    timeline.write(recording, settings.output / "timeline", steps=_SHOWN_STEPS)
    return report


def _train(
    how: str,
    model: keras.Model,
    settings: Settings,
    images: data.Images,
    total: Callable[[], int],
    progress: Progress,
) -> Steps:
    batches = data.batches(
        images, settings.batch_size, settings.steps, settings.seed
    )
    with progress(f"Training {how}", settings.steps) as advance:
        steps = Steps(total, on_step=advance)
        model.fit(batches, verbose=0, callbacks=[steps])
    return steps


def _score(
    model: keras.Model, steps: Steps, settings: Settings, images: data.Images
) -> Run:
    scores = model.evaluate(
        images.held_out_x,
        images.held_out_y,
        batch_size=settings.batch_size,
        verbose=0,
        return_dict=True,
    )
    return Run(
        losses=tuple(map(float, steps.losses)),
        step_s=steps.median_s,
        held_out_loss=float(scores["loss"]),
        held_out_accuracy=float(scores["accuracy"]),
    )


def _record(
    model: keras.Model,
    strategy: convpar.ConvParallelStrategy,
    settings: Settings,
    images: data.Images,
    step_s: float,
) -> timeline.Recording:
    """Some more training steps, which no median counts."""
    tasks = strategy.cluster.tasks
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        class Recorder(keras.callbacks.Callback):
            recording: Any = None

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if self.recording is None:
                    self.recording = pool.submit(
                        timeline.record, tasks, _RECORDED_STEPS * step_s
                    )
                elif self.recording.done():
                    self.model.stop_training = True

        recorder = Recorder()
        model.fit(
            data.batches(
                images, settings.batch_size, _PLENTY, settings.seed + 1
            ),
            verbose=0,
            callbacks=[recorder],
        )
        return recorder.recording.result()


def _export(
    model: keras.Model, settings: Settings, images: data.Images
) -> float:
    target = settings.output / "model"
    expected = model.predict(
        images.held_out_x, batch_size=settings.batch_size, verbose=0
    )
    export(model, target)
    served = predict_elsewhere(target, images.held_out_x)
    return float(np.max(np.abs(served - expected)))


def _sizes(layer: Any, devices: Sequence[str]) -> tuple[int, ...]:
    """Number of kernels on each device."""
    if not layer.is_sharded:
        return (layer.filters, *[0] * (len(devices) - 1))
    layout = layer.kernel.value.layout
    held = dict(zip(layout.devices, layout.sizes, strict=True))
    return tuple(held.get(device, 0) for device in devices)
