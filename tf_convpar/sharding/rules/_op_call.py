"""How a device computes a layer: by the layer's own code, or by an op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.placement import device_type


@dataclasses.dataclass(frozen=True)
class OpCall:
    """Computes a layer by ops, in the place of its class's `call`.

    ```python
    y = op_call_of(layer, [x.shape])(layer, x)
    ```

    Attributes:
        compute: Takes a layer, its input, and the name of an activation that
            follows. Returns None where that is left to Keras.
        activations: Names of the activations that it computes in its pass.
    """

    compute: Callable[[Any, Any, str], tf.Tensor | None]
    activations: Collection[str] = ()

    def __call__(
        self,
        layer: Any,
        inputs: Any,
        *args: Any,
        activation: str = "linear",
        **kwargs: Any,
    ) -> Any:
        """Computes a layer on the part of its input that a device has.

        Args:
            layer: The layer.
            inputs: Its input.
            *args: Other arguments of its `call`.
            activation: Name of an activation that follows.
            **kwargs: Other keyword arguments of its `call`.
        """
        result = self.compute(layer, inputs, activation)
        if result is not None:
            return result
        result = type(layer).call(layer, inputs, *args, **kwargs)
        if activation == "linear":
            return result
        return ops.biased(result, tf.zeros(result.shape[-1]), activation)


def call_on(device: str, layer: Any) -> Callable[..., Any]:
    """How a device computes a layer: by the `call` of its class, or by an op.

    Args:
        device: Name of the device.
        layer: The layer, or operation. What is attached to it may have an
            `OpCall`, which processors run.
    """
    op_call = getattr(vars(layer).get("call"), "op_call", None)
    on_cpu = device_type(device) == "CPU"
    return op_call if op_call is not None and on_cpu else type(layer).call
