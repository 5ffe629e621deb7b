"""Lets other threads of a core go first."""

from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device


def give_way(value: tf.Tensor, *, native: bool | None = None) -> tf.Tensor:
    """A tensor as it is, once threads that send something had their turn.

    ```python
    moments = give_way(merged_moments(fractions, rows))
    ```

    What a device computes is sent by one thread, while another goes on with
    what is next. On one core that is a matter of milliseconds: the system lets
    a thread compute for so long, though all other devices wait.

    Args:
        value: What is to be computed with next, on a CPU.
        native: True for the compiled op; False for nothing at all; None for the
            compiled one if `load()` finds it.
    """
    if _library.load() if native is None else native:
        found: tf.Tensor = _library.module().tf_convpar_give_way(value=value)
        return found
    return value


@tf.RegisterGradient("TfConvpar>GiveWay")
def _gradient(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    with same_device(op.outputs[0].device):
        return tf.identity(upstream)
