"""Updates of weights by one op each, where TensorFlow has one.

Keras updates a weight by SGD with momentum in five ops, by Adam in fifteen.
Each reads and writes all of it, and weights pass through no cache twice:
TensorFlow's own op goes over them once. It computes the same in the same order.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tf_convpar._compat.keras import slots_of
from tf_convpar._compat.patches import replace
from tf_convpar.placement import ShardedVariable
from tf_convpar.strategy.keras_training import before_steps

# Optimizers whose updates are fused.
_fused: weakref.WeakSet[keras.optimizers.Optimizer] = weakref.WeakSet()


def fuse_updates(ours: Callable[[keras.Model], bool]) -> None:
    """Fuses updates by SGD and Adam, once a model is about to be trained.

    ```python
    fuse_updates(lambda model: model.name == "mine")
    ```

    AdamW decays weights by itself and is Adam in the rest. Weights in shards
    are updated shard by shard; sparse gradients, and with `amsgrad`, as Keras
    does it.

    Args:
        ours: Function that returns whether to do it for a model.
    """

    def note(model: keras.Model) -> None:
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and ours(model):
            fuse_updates_of(optimizer)

    before_steps(note)


def fuse_updates_of(optimizer: keras.optimizers.Optimizer) -> None:
    """Fuses the updates by an optimizer."""
    # One that scales losses has another inside.
    _fused.add(getattr(optimizer, "inner_optimizer", optimizer))


def _if_fused(
    step: Callable[..., None], fused: Callable[..., None]
) -> Callable[..., None]:
    """Replaces `update_step` of a class of optimizers."""

    @functools.wraps(step)
    def wrapped(
        self: keras.optimizers.Optimizer,
        gradient: Any,
        variable: Any,
        learning_rate: Any,
    ) -> None:
        plain = (
            self in _fused
            and isinstance(gradient, tf.Tensor)
            and not getattr(self, "amsgrad", False)
        )
        held = (variable, *slots_of(self, variable)) if plain else ()
        written = list(map(_written, held))
        if not plain or any(v is None for v in written):
            step(self, gradient, variable, learning_rate)
            return
        dtype = variable.dtype
        fused(
            self,
            ops.cast(gradient, dtype),
            ops.cast(learning_rate, dtype),
            *written,
        )

    return wrapped


def _written(variable: Any) -> tf.Variable | None:
    """The variable that an update of a weight or slot writes to, if any."""
    if isinstance(variable, ShardedVariable):
        return variable.updated_now()
    return variable if isinstance(variable, tf.Variable) else None


def _sgd(
    optimizer: keras.optimizers.SGD,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    variable: tf.Variable,
    *slots: tf.Variable,
) -> None:
    if optimizer.momentum == 0:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=rate, delta=gradient
        )
        return
    (momentum,) = slots
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=momentum.handle,
        lr=rate,
        grad=gradient,
        momentum=ops.cast(optimizer.momentum, variable.dtype),
        use_nesterov=optimizer.nesterov,
    )


def _adam(
    optimizer: keras.optimizers.Adam,
    gradient: tf.Tensor,
    rate: tf.Tensor,
    variable: tf.Variable,
    *slots: tf.Variable,
) -> None:
    dtype = variable.dtype
    step = ops.cast(optimizer.iterations + 1, dtype)
    # Keras rounds the base to float32, and nothing else.
    first, second = (
        ops.power(ops.cast(beta, dtype), step)
        for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    momentum, velocity = slots
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=first,
        beta2_power=second,
        lr=rate,
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        grad=gradient,
    )


for _name, _update in (("SGD", _sgd), ("Adam", _adam)):
    replace(
        f"keras:optimizers.{_name}.update_step",
        by=functools.partial(_if_fused, fused=_update),
    )
