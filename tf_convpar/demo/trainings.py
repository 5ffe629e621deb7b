"""The trainings of the demo: how each makes its model, and on which devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

import tf_convpar as convpar
from tf_convpar.demo import networks
from tf_convpar.demo.settings import Settings
from tf_convpar.plans import Plan

# Takes the name of a part of the work and its number of pieces. Yields a
# function that is called after each piece.
Progress = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
# What has `fit` and `evaluate`, and the plan by which it is split, if any.
ModelAndPlan = tuple[Any, Plan | None]


@dataclasses.dataclass(frozen=True)
class Training:
    """One way to train a network.

    Attributes:
        name: What makes the model, for people.
        make: Makes the model.
        scope: Where it is made and trained, by the strategy of all devices.
        everywhere: Whether that is on all devices, or on the chief alone.
        replicas: Whether each device has a model of its own. The others make
            the steps of plain Keras.
    """

    name: str
    make: Callable[
        [Settings, convpar.ConvParallelStrategy, Progress], ModelAndPlan
    ]
    scope: Callable[[convpar.ConvParallelStrategy], AbstractContextManager]
    everywhere: bool = False
    replicas: bool = False


def trainings(settings: Settings) -> tuple[Training, ...]:
    """The trainings to compare: plain Keras first, all devices last.

    ```python
    [training.name for training in trainings(settings)]
    ```
    """
    if settings.star:
        return (_PLAIN, _STAR)
    return (_PLAIN, _ONE, _REPLICAS, _PLANNED)


def _plain(settings: Settings, *_: Any) -> ModelAndPlan:
    if settings.star:
        return networks.paper(keras.layers.Conv2D, settings.seed), None
    return networks.resnet9(settings.seed), None


def _one(settings: Settings, *_: Any) -> ModelAndPlan:
    model = networks.resnet9(settings.seed)
    return convpar.parallelize(model, algorithm="auto"), None


def _planned(
    settings: Settings,
    strategy: convpar.ConvParallelStrategy,
    progress: Progress,
) -> ModelAndPlan:
    model = networks.resnet9(settings.seed)
    with progress("Measuring and planning", 1) as advance:
        plan = strategy.planner().model(
            model, settings.batch_size, algorithm="auto"
        )
        advance()
    return convpar.parallelize(model, plan, algorithm="auto"), plan


def _replicas(settings: Settings, *_: Any) -> ModelAndPlan:
    model = networks.resnet9(settings.seed)
    return convpar.replicas.SyncSGD(model, algorithm="auto"), None


def _star(settings: Settings, *_: Any) -> ModelAndPlan:
    model = networks.paper(
        convpar.ConvParallel2D, settings.seed, shards=settings.shards
    )
    return model, None


def _chief(strategy: convpar.ConvParallelStrategy) -> AbstractContextManager:
    return tf.device(strategy.chief_device)


def _alone(strategy: convpar.ConvParallelStrategy) -> AbstractContextManager:
    return convpar.ConvParallelStrategy(devices=[strategy.chief_device]).scope()


_ALL = convpar.ConvParallelStrategy.scope
_PLAIN = Training("plain Keras", _plain, _chief)
_ONE = Training("parallelize", _one, _alone)
_PLANNED = Training("parallelize", _planned, _ALL, everywhere=True)
_REPLICAS = Training("SyncSGD", _replicas, _ALL, everywhere=True, replicas=True)
_STAR = Training("split by filters", _star, _ALL, everywhere=True)
