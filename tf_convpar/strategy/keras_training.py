"""Lets Keras train under this strategy as it does without any strategy.

There is one replica, and it is the program itself. So `fit` has nothing to
prepare for replicas, and an optimizer may be used wherever plain Keras would
use it. Keras has no hooks for either, so its methods are wrapped here, once.
Without a `ConvParallelStrategy` they do as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat import tensorflow as of_tensorflow
from tf_convpar._compat.keras import adopt
from tf_convpar._compat.keras import layers_of
from tf_convpar._compat.keras import strategy_of
from tf_convpar._compat.keras import trained_by
from tf_convpar._compat.keras import without_strategy
from tf_convpar._compat.patches import replace

# Functions that are called with a model before its step is made.
_before_steps: list[Callable[[keras.Model], None]] = []


def wrap(kind: type[tf.distribute.Strategy]) -> None:
    """Lets Keras train under strategies of this kind as without a strategy."""

    def replace_for(target: str, by: Callable[..., Any]) -> None:
        replace(target, functools.partial(by, kind=kind))

    replace_for("keras:Model._maybe_symbolic_build", _built_when_traced)
    replace_for("keras:Model._resolve_auto_jit_compile", _compiled_on_a_card)
    make_slots_first(lambda model: isinstance(model.distribute_strategy, kind))
    for optimizer in ("Optimizer", "LossScaleOptimizer"):
        replace_for(f"keras:optimizers.{optimizer}.apply", _as_the_replica)
    replace_for(
        "keras:optimizers.Optimizer._backend_update_step", _with_one_rate
    )
    for module in ("utils", "backend"):
        replace_for(f"keras:{module}.clear_session", _in_scope_still)


def _built_when_traced(
    build: Callable[..., None], kind: type[tf.distribute.Strategy]
) -> Callable[..., None]:
    """Skips `Model._maybe_symbolic_build`, as Keras does without a strategy.

    The method takes a batch out of the dataset. What is shuffled, augmented or
    generated goes on from there, so a training would see other batches than on
    one device. Models without `call` could not be built at all.
    """

    @functools.wraps(build)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self.distribute_strategy, kind):
            build(self, *args, **kwargs)

    return wrapped


def _compiled_on_a_card(
    choose: Callable[..., bool], kind: type[tf.distribute.Strategy]
) -> Callable[..., bool]:
    """Chooses XLA for `jit_compile="auto"` as Keras does without a strategy.

    That is on a machine with a GPU, if all layers support it. Layers that are
    spread over devices do not.
    """

    @functools.wraps(choose)
    def wrapped(self: keras.Model) -> bool:
        strategy = self.distribute_strategy
        if not isinstance(strategy, kind):
            return choose(self)
        if strategy.cluster is not None:
            return False
        with without_strategy(self):
            return choose(self)

    return wrapped


def before_steps(do: Callable[[keras.Model], None]) -> None:
    """Does something with each model before its step of training is made.

    ```python
    before_steps(lambda model: print(model.name))
    ```

    Args:
        do: Function that takes the model. It is called more often than steps
            are made.
    """
    _before_steps.append(do)


def _after_before_steps(make: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the functions of `before_steps` in `Model.make_train_function`."""

    @functools.wraps(make)
    def wrapped(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        for do in _before_steps:
            do(self)
        return make(self, *args, **kwargs)

    return wrapped


def make_slots_first(ours: Callable[[keras.Model], bool]) -> None:
    """Makes the optimizer's slots before a model's step is made.

    ```python
    make_slots_first(is_parallel)
    ```

    TensorFlow traces a step that makes variables twice, and tracing the step
    of a large model takes a minute. A program's own `train_step` may train
    only some of the variables; there the optimizer makes its slots itself.

    Args:
        ours: Function that returns whether to do it for a model.
    """

    def make(model: keras.Model) -> None:
        optimizer = getattr(model, "optimizer", None)
        if (
            optimizer is not None
            and not optimizer.built
            and ours(model)
            and type(model).train_step is keras.Model.train_step
            and model.trainable_variables
            and all(layer.built for layer in (model, *layers_of(model)))
        ):
            strategy = model.distribute_strategy
            _adopt(optimizer, strategy)
            with strategy.scope():
                optimizer.build(model.trainable_variables)

    before_steps(make)


def _adopt(
    optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy
) -> None:
    """Sets the strategy of an optimizer, and of one within it."""
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if one is not None:
            adopt(one, strategy)


def _as_the_replica(
    apply: Callable[..., Any], kind: type[tf.distribute.Strategy]
) -> Callable[..., Any]:
    """Runs `Optimizer.apply` as the replica, in a program's own loop too.

    The loop may run outside of the strategy's scope, and the optimizer may
    have been made outside of it. Slots go beside their shards, and shards are
    updated where they are, all the same.
    """

    @functools.wraps(apply)
    def wrapped(
        self: keras.optimizers.Optimizer,
        grads: Any,
        trainable_variables: Any = None,
    ) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        known = trainable_variables or trained_by(self)
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
    """Reads the learning rate once for `Optimizer._backend_update_step`.

    Keras reads it for every variable, which costs a message for each variable
    on another machine.
    """

    @functools.wraps(step)
    def wrapped(
        self: keras.optimizers.Optimizer,
        grads: Any,
        trainable_variables: Any,
        learning_rate: Any,
    ) -> Any:
        strategy = strategy_of(self)
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
    """The strategy in scope, else the optimizer's, else that of variables.

    Strategies of another kind are passed over. None if there is no other.
    """
    variables = [getattr(v, "value", v) for v in variables]
    candidates = [
        tf.distribute.get_strategy(),
        strategy_of(optimizer),
        *map(of_tensorflow.strategy_of, variables),
    ]
    return next((c for c in candidates if isinstance(c, kind)), None)


def _in_scope_still(
    clear: Callable[..., None], kind: type[tf.distribute.Strategy]
) -> Callable[..., None]:
    """Keeps the strategy's scope open when `clear_session` is called in it.

    The function makes a new default graph, but TensorFlow keeps the scope in
    the old one. What is made next would be outside of the scope, and leaving
    the scope would fail.
    """

    @functools.wraps(clear)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        inside = isinstance(tf.distribute.get_strategy(), kind)
        before = tf.compat.v1.get_default_graph()
        clear(*args, **kwargs)
        if inside:
            now = tf.compat.v1.get_default_graph()
            of_tensorflow.stay_in_scope(before, now)

    return wrapped


replace("keras:Model.make_train_function", by=_after_before_steps)
