"""The demo itself: one network, trained plain, on one device, and on all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import keras
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar import plans
from tf_convpar.demo import data
from tf_convpar.demo import network
from tf_convpar.demo import plots
from tf_convpar.demo import slowed
from tf_convpar.demo.report import Report
from tf_convpar.demo.report import Training
from tf_convpar.demo.settings import PLAN
from tf_convpar.demo.settings import Settings
from tf_convpar.demo.steps import Steps
from tf_convpar.demo.steps import byte_counter
from tf_convpar.sharding import step_traffic

# Takes the name of a part of the work and its number of pieces. Yields a
# function that is called after each piece.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]

# Steps in the picture of the timeline, and those that are made for it.
_SHOWN_STEPS, _RECORDED_STEPS = 2, 5


def run(
    settings: Settings,
    images: data.Images,
    strategy: convpar.ConvParallelStrategy,
    progress: Progress,
) -> Report:
    """Trains three times from the same seed; writes all files to the output.

    ```python
    report = run(settings, data.load("digits"), strategy, progress)
    report.faster(report.many)
    ```

    Args:
        settings: What to train, and where its files go.
        images: Images to train on.
        strategy: Strategy of a cluster. It must be made before anything else,
            because joining a cluster ends the life of variables.
        progress: Called with the name and the number of pieces of each part of
            the work; see `Progress`.
    """
    total, counted_on = byte_counter(t.port for t in strategy.cluster.tasks)

    def train(
        how: str, model: keras.Model, *callbacks: keras.callbacks.Callback
    ) -> Steps:
        more = _RECORDED_STEPS if callbacks else 0
        count = settings.steps + more
        batches = data.batches(
            images, settings.batch_size, count, settings.seed
        )
        with progress(f"Training {how}", count) as advance:
            steps = Steps(total, on_step=advance, most=settings.steps)
            model.fit(batches, verbose=0, callbacks=[*callbacks, steps])
        return steps

    with tf.device(strategy.chief_device):
        plain = network.build(settings.seed)
        before = train("plain Keras, one device", plain)
    own = convpar.ConvParallelStrategy(devices=[strategy.chief_device])
    with own.scope():
        one = convpar.parallelize(
            network.build(settings.seed), algorithm="auto"
        )
        after = train("parallelize, one device", one)
    with strategy.scope():
        model = network.build(settings.seed)
        with progress("Measuring and planning", 1) as advance:
            planner = strategy.planner()
            plan = planner.model(model, settings.batch_size, algorithm="auto")
            advance()
        many = convpar.parallelize(model, plan, algorithm="auto")
    timeline = convpar.callbacks.Timeline(
        settings.output / "timeline", steps=_SHOWN_STEPS, after=settings.steps
    )
    how = f"parallelize, {len(strategy.devices)} devices"
    steps = train(how, many, timeline)
    report = Report(
        plain=_training(before),
        one=_training(after),
        many=_training(steps),
        weights=model.count_params(),
        batch_size=settings.batch_size,
        devices=tuple(strategy.devices),
        used=tuple(plan.used),
        parts=(1.0, *slowed.parts(len(strategy.devices) - 1)),
        reason=plan.reason,
        predicted_s=plan.prediction and plan.prediction.step_s,
        measured_bytes=steps.median_bytes,
        counted_on=counted_on,
        theory_bytes=step_traffic(many, settings.batch_size).total,
        cores=settings.cores,
    )
    plan.save(settings.output / PLAN)
    plans.draw(plan, settings.output / "plan.png")
    plots.draw_losses(report, settings.output / "losses.png")
    return report


def _training(steps: Steps) -> Training:
    return Training(tuple(map(float, steps.losses)), steps.median_s)
