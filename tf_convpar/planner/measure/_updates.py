"""Measures what the optimizer costs on the devices that have kernels."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_convpar.planner.measure.clock import Clock

# Parameters to update. Like kernels, they do not fit into the nearest caches.
_PARAMETERS = 1 << 20
# Updates in a row. To call a device over a network takes as long as one update.
_TIMES = 5


def update_s(optimizer: Any, device: str, clock: Clock) -> float:
    """Seconds of an update of one parameter on a device, slots included.

    ```python
    update_s(keras.optimizers.Adam(), "/device:CPU:0", Clock())
    ```
    """
    with tf.device(device):
        copy = _alike(optimizer)
        variable = keras.Variable(tf.zeros([1024, _PARAMETERS // 1024]))
        copy.build([variable])
        gradient = tf.fill(variable.shape, 1e-3)

    def seconds(times: int) -> float:
        def updates(gradient: tf.Tensor) -> tf.Tensor:
            with tf.device(device):
                for _ in range(times):
                    copy.apply([gradient], [variable])
                return tf.identity(variable.value[0, 0])

        function = tf.function(updates, autograph=False)
        concrete = function.get_concrete_function(gradient)
        name = f"{device}: {times} updates by {optimizer.name}"
        return clock.time(lambda: concrete(gradient).numpy(), name)

    each = (seconds(_TIMES) - seconds(1)) / (_TIMES - 1)
    return max(each, 0.0) / _PARAMETERS


def slots_of(optimizer: Any) -> int:
    """Numbers that an optimizer keeps for each parameter."""
    copy = _alike(optimizer)
    variable = keras.Variable(tf.zeros([3, 5]))
    copy.build([variable])
    same = [v for v in copy.variables if tuple(v.shape) == (3, 5)]
    return len(same)


def _alike(optimizer: Any) -> Any:
    """An optimizer that does the same work, at a rate of its own.

    A schedule may be of a class that Keras does not know.
    """
    config = optimizer.get_config()
    if "learning_rate" in config:
        config["learning_rate"] = 1e-3
    return type(optimizer).from_config(config)
