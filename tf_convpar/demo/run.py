"""The demo itself: one network, trained plain and split, and compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import machines
from tf_convpar import plans
from tf_convpar.demo import data
from tf_convpar.demo import plots
from tf_convpar.demo import slowed
from tf_convpar.demo.reload import predict_elsewhere
from tf_convpar.demo.report import Report
from tf_convpar.demo.report import Trained
from tf_convpar.demo.report import in_words
from tf_convpar.demo.settings import PLAN
from tf_convpar.demo.settings import Settings
from tf_convpar.demo.steps import Steps
from tf_convpar.demo.trainings import Progress
from tf_convpar.demo.trainings import Training
from tf_convpar.demo.trainings import trainings
from tf_convpar.export import export
from tf_convpar.placement import row_ports
from tf_convpar.sharding import step_traffic

# Steps in the picture of the timeline, and those before them.
_SHOWN_STEPS, _EARLIER_STEPS = 2, 2
# Seconds until every task records, at most.
_BEGIN_S = 2.0


def run(
    settings: Settings,
    images: data.Images,
    strategy: convpar.ConvParallelStrategy,
    progress: Progress,
) -> Report:
    """Trains from the same seed in each way; writes all files to the output.

    ```python
    report = run(settings, data.load("digits"), strategy, progress)
    report.faster(report.split)
    ```

    Args:
        settings: What to train, and where its files go.
        images: Images to train on, and held-out ones.
        strategy: Strategy of a cluster. It must be made before anything else,
            because joining a cluster ends the life of variables.
        progress: Called with the name and the number of pieces of each part of
            the work; see `Progress`.
    """
    devices = tuple(strategy.devices)
    trained = []
    for training in trainings(settings):
        with training.scope(strategy):
            model, plan = training.make(settings, strategy, progress)
            count = len(devices) if training.everywhere else 1
            # What others have left behind is not counted as this one's.
            ports = [task.port for task in strategy.cluster.tasks]
            total, counted_on = machines.byte_counter(
                [*ports, *row_ports(devices)]
            )
            # Connections end as replicas begin, which no count survives.
            steps = Steps((lambda: 0) if training.replicas else total)
            trained.append(
                _train(
                    training, model, count, settings, images, steps, progress
                )
            )
    # The last one is split between all devices.
    with progress("Recording who computes what", 1) as advance:
        _record(model, settings, images, steps.median_s)
        advance()
    with progress("Exporting, and reloading elsewhere", 1) as advance:
        difference = _export(model, settings, images)
        advance()
    predicted = plan.prediction if plan else None
    report = Report(
        network="The network of paper 1" if settings.star else "ResNet-9",
        weights=model.count_params(),
        batch_size=settings.batch_size,
        trainings=tuple(trained),
        devices=devices,
        parts=slowed.parts(len(devices), settings.cores, settings.star),
        kernels=dict(plan.allocation) if plan else _kernels(model, devices),
        used=tuple(plan.used) if plan else devices,
        reason=plan.reason if plan else "",
        predicted_s=predicted.step_s if predicted else None,
        measured_bytes=steps.median_bytes,
        counted_on=counted_on,
        theory_bytes=step_traffic(model, settings.batch_size).total,
        wire_dtype=settings.wire_dtype or "float32",
        export_difference=difference,
        cores=settings.cores,
    )
    if plan:
        plan.save(settings.output / PLAN)
        plans.draw(plan, settings.output / "plan.png")
    plots.draw_losses(report, settings.output / "losses.png")
    return report


def _train(
    training: Training,
    model: Any,
    devices: int,
    settings: Settings,
    images: data.Images,
    steps: Steps,
    progress: Progress,
) -> Trained:
    """Trains a model in one of the ways, and scores it."""
    how = f"{training.name}, {in_words(devices)}"
    with progress(f"Training {how}", settings.steps) as advance:
        steps.on_step = advance
        if training.replicas:
            step_s = _train_replicas(model, settings, images, steps)
        else:
            batches = _batches(images, settings)
            model.fit(batches, verbose=0, callbacks=[steps])
            step_s = steps.median_s
    losses = tuple(map(float, steps.losses))
    loss, accuracy = _score(model, settings, images)
    return Trained(
        *(training.name, devices, losses, step_s, loss, accuracy),
        replicas=training.replicas,
    )


def _batches(images: data.Images, settings: Settings) -> tf.data.Dataset:
    return data.batches(
        images, settings.batch_size, settings.steps, settings.seed
    )


def _train_replicas(
    method: convpar.replicas.SyncSGD,
    settings: Settings,
    images: data.Images,
    steps: Steps,
) -> float:
    """Seconds of a step of as many images as the other trainings' steps."""
    method.fit(
        images.x,
        images.y,
        batch_size=max(1, settings.batch_size // len(method.devices)),
        steps_per_epoch=settings.steps,
        verbose=0,
        callbacks=[steps],
    )
    # Without a device that does not pay, a step has fewer.
    batch = sum(replica.batch for replica in method.replicas)
    return steps.median_s * settings.batch_size / batch


def _score(
    model: keras.Model | convpar.replicas.SyncSGD,
    settings: Settings,
    images: data.Images,
) -> tuple[float, float]:
    """Loss and accuracy on held-out images."""
    scores = model.evaluate(
        images.held_out_x,
        images.held_out_y,
        batch_size=settings.batch_size,
        verbose=0,
        return_dict=True,
    )
    return float(scores["loss"]), float(scores["accuracy"])


def _record(
    model: keras.Model, settings: Settings, images: data.Images, step_s: float
) -> None:
    """Some more training steps, which no median counts."""
    # The last steps in the picture must be whole, and it takes long to begin.
    steps = _EARLIER_STEPS + _SHOWN_STEPS + 2 + math.ceil(_BEGIN_S / step_s)
    timeline = convpar.callbacks.Timeline(
        settings.output / "timeline", steps=_SHOWN_STEPS, after=_EARLIER_STEPS
    )
    batches = data.batches(
        images, settings.batch_size, steps, settings.seed + 1
    )
    model.fit(batches, verbose=0, callbacks=[timeline])


def _export(
    model: keras.Model, settings: Settings, images: data.Images
) -> float:
    """Largest difference of a prediction by the export, elsewhere."""
    target = settings.output / "model"
    expected = model.predict(
        images.held_out_x, batch_size=settings.batch_size, verbose=0
    )
    export(model, target)
    served = predict_elsewhere(target, images.held_out_x)
    return float(np.max(np.abs(served - expected)))


def _kernels(
    model: keras.Model, devices: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Number of kernels on each device, for each layer by name."""
    return {
        layer.name: _sizes(layer, devices)
        for layer in model.layers
        if isinstance(layer, convpar.ConvParallel2D)
    }


def _sizes(layer: Any, devices: Sequence[str]) -> tuple[int, ...]:
    if not layer.is_sharded:
        return (layer.filters, *[0] * (len(devices) - 1))
    layout = layer.kernel.value.layout
    held = dict(zip(layout.devices, layout.sizes, strict=True))
    return tuple(held.get(device, 0) for device in devices)
