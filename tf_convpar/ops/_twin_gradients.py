"""Gradients of compiled ops that are the gradients of their twins.

Most ops of a backward pass are differentiated for second derivatives alone.
There nobody counts milliseconds, and TensorFlow's ops serve.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ._devices import same_device


def register(
    name: str, twin: Callable[..., Any], attributes: Sequence[str] = ()
) -> None:
    """Registers the gradient of a twin as that of a compiled op.

    ```python
    twin = functools.partial(activated_sums, native=False)
    register("ActivatedSums", twin, ["activation"])
    ```

    Inputs that the twin does not use have gradients of zeros.

    Args:
        name: Name of the op, without that of the package.
        twin: Computes the op's results by TensorFlow's ops. It takes the op's
            inputs, and attributes by their names.
        attributes: Names of the attributes that it takes.
    """

    @tf.RegisterGradient(f"TfConvpar>{name}")
    def gradient(op: Any, *upstream: tf.Tensor) -> Sequence[tf.Tensor]:
        inputs = list(op.inputs)
        values = {key: _attribute(op, key) for key in attributes}
        with same_device(op.outputs[0].device):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                results = twin(*inputs, **values)
            gradients: Sequence[tf.Tensor] = tape.gradient(
                results, inputs, list(upstream), unconnected_gradients="zero"
            )
        return gradients


def _attribute(op: Any, name: str) -> Any:
    value = op.get_attr(name)
    return value.decode() if isinstance(value, bytes) else value
