"""What Keras does otherwise under a strategy, and need not under this one.

There is one replica, and it is the program itself. So `fit` has nothing to
prepare for replicas, and an optimizer may be used wherever plain Keras would
use it. Keras has no hooks for either: its methods are wrapped here, once.
They do as before wherever there is no `ConvParallelStrategy`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def wrap(kind: type[tf.distribute.Strategy]) -> None:
    """Lets Keras train under strategies of this kind as under none."""
    keras.Model._maybe_symbolic_build = _built_when_traced(
        keras.Model._maybe_symbolic_build, kind
    )
    keras.Model.make_train_function = _with_slots(
        keras.Model.make_train_function, kind
    )
    for optimizer in (
        keras.optimizers.Optimizer,
        keras.optimizers.LossScaleOptimizer,
    ):
        optimizer.apply = _as_the_replica(optimizer.apply, kind)
    keras.optimizers.Optimizer._backend_update_step = _with_one_rate(
        keras.optimizers.Optimizer._backend_update_step, kind
    )
    for module in (keras.utils, keras.backend):
        module.clear_session = _in_scope_still(module.clear_session, kind)


def _built_when_traced(
    build: Callable[..., None], kind: type[tf.distribute.Strategy]
) -> Callable[..., None]:
    """`Model._maybe_symbolic_build`, which plain Keras does not do either.

    It would take a batch out of the dataset: what is shuffled, augmented or
    generated goes on from there, and a training sees other batches than it
    would on one device. Models without `call` could not be built at all.
    """

    @functools.wraps(build)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self.distribute_strategy, kind):
            build(self, *args, **kwargs)

    return wrapped


def _with_slots(
    make: Callable[..., Any], kind: type[tf.distribute.Strategy]
) -> Callable[..., Any]:
    """`Model.make_train_function`, the optimizer's slots made before it.

    TensorFlow traces a step that makes variables twice, and tracing the steps
    of large models takes a minute. A program's own `train_step` may train
    other variables than all of them: there the optimizer finds out itself.
    """

    @functools.wraps(make)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        strategy = self.distribute_strategy
        optimizer = getattr(self, "optimizer", None)
        if (
            isinstance(strategy, kind)
            and optimizer is not None
            and not optimizer.built
            and type(self).train_step is keras.Model.train_step
            and self.trainable_variables
            and all(layer.built for layer in self._flatten_layers())
        ):
            _adopt(optimizer, strategy)
            with strategy.scope():
                optimizer.build(self.trainable_variables)
        return make(self, *args, **kwargs)

    return wrapped


def _adopt(
    optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy
) -> None:
    """Lets an optimizer make its slots as the strategy has it."""
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if one is not None:
            one._distribution_strategy = strategy


def _as_the_replica(
    apply: Callable[..., Any], kind: type[tf.distribute.Strategy]
) -> Callable[..., Any]:
    """`Optimizer.apply`, in a program's own loop too.

    The loop may be outside of the scope, and so may the optimizer have been
    made: slots go beside their shards, and shards are updated where they are,
    all the same.
    """

    @functools.wraps(apply)
    def wrapped(
        self: keras.optimizers.Optimizer,
        grads: Any,
        trainable_variables: Any = None,
    ) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        known = trainable_variables or self._trainable_variables
        strategy = _strategy(self, known, kind)
        if strategy is None:
            return apply(self, grads, trainable_variables)
        _adopt(self, strategy)
        with strategy.extended.replica():
            return apply(self, grads, trainable_variables)

    return wrapped


def _with_one_rate(
    step: Callable[..., Any], kind: type[tf.distribute.Strategy]
) -> Callable[..., Any]:
    """`Optimizer._backend_update_step`, where the learning rate is read once.

    Keras reads it for every variable: where those are on another machine, a
    message each.
    """

    @functools.wraps(step)
    def wrapped(
        self: keras.optimizers.Optimizer,
        grads: Any,
        trainable_variables: Any,
        learning_rate: Any,
    ) -> Any:
        strategy = self._distribution_strategy
        if isinstance(strategy, kind):
            with tf.device(strategy.chief_device):
                learning_rate = tf.convert_to_tensor(learning_rate)
        return step(self, grads, trainable_variables, learning_rate)

    return wrapped


def _strategy(
    optimizer: keras.optimizers.Optimizer,
    variables: list[Any],
    kind: type[tf.distribute.Strategy],
) -> tf.distribute.Strategy | None:
    """The one in scope, else the optimizer's, else the variables'."""
    variables = [getattr(v, "value", v) for v in variables]
    candidates = [
        tf.distribute.get_strategy(),
        optimizer._distribution_strategy,
        *(getattr(v, "_distribute_strategy", None) for v in variables),
    ]
    return next((c for c in candidates if isinstance(c, kind)), None)


def _in_scope_still(
    clear: Callable[..., None], kind: type[tf.distribute.Strategy]
) -> Callable[..., None]:
    """`clear_session`, which a program may call in the strategy's scope.

    It makes a new default graph, and in its graph TensorFlow keeps the scope:
    what is made next would be outside of it, and its end would fail.
    """

    @functools.wraps(clear)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        inside = isinstance(tf.distribute.get_strategy(), kind)
        before = tf.compat.v1.get_default_graph()
        clear(*args, **kwargs)
        if inside:
            now = tf.compat.v1.get_default_graph()
            now._distribution_strategy_stack = (
                before._distribution_strategy_stack
            )
            now._variable_creator_stack = before._variable_creator_stack

    return wrapped
