"""A stage of a layer: one convolution, as one device computes it.

Most layers have one stage; a separable convolution has two. The gradients of
each are put in an order: of two convolutions in one function, operations that
they share would be computed twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import as_layer_of
from tf_convpar.algorithms import in_one_pass
from tf_convpar.layers._activations import op_activation
from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channels import move_channels
from tf_convpar.ops import Epilogue
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import device_type
from tf_convpar.placement import on_device

NO_ZEROS = (0, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a convolution that is computed, and where.

    Attributes:
        device: Name of the device.
        first: Number of the first of its filters, or of its channels.
        channels_last: Whether its tensors are channels last.
    """

    device: str
    first: int
    channels_last: bool


class Stage:
    """One convolution of a layer, of all its filters or of a part.

    ```python
    y = stage.on(device, x, [kernel, bias])
    ```

    Kinds of stages differ in what they compute (`compute`), where they need
    their input (`wanted`), and what they take into their pass (`activations`,
    `source`).

    Args:
        layer: The parallel layer, whose arguments say how it convolves.
        kernel: Name of its kernel.
        has_bias: Whether the layer's bias, if there is one, is added here.

    Attributes:
        names: Names of the weights that it takes.
    """

    def __init__(
        self, layer: Any, kernel: str = "kernel", has_bias: bool = True
    ) -> None:
        self.layer = layer
        self.names = [kernel]
        if has_bias and layer.use_bias:
            self.names.append("bias")

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        part: Part,
        epilogue: Epilogue | None,
        zeros: Sequence[int],
    ) -> tf.Tensor:
        """Computes feature maps, on the device that is current.

        Args:
            x: The input.
            kernel: The kernel of the part, in the input's dtype.
            bias: The bias, if there is one.
            part: Which part it is.
            epilogue: What else is computed in the pass, but for the bias; None
                if nothing is. Only what `activations` or `source` have named.
            zeros: Zeros above, below, left and right of images; as `source`
                has named them.
        """
        raise NotImplementedError

    def wanted(self) -> AnyLayout | tuple[str, ...]:
        """The place where the input is needed: a layout, or device names."""
        devices: tuple[str, ...] = self.layer._layout.devices
        return devices

    def is_of_keras(self, device: str) -> bool:
        """Whether a device that has all weights computes it as Keras does."""
        return True

    def activations(self, device: str) -> Collection[str]:
        """Activations that it computes in its pass, in training too."""
        return ()

    def source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        """Inputs and epilogue by which inference recomputes the layer.

        Args:
            inputs: The inputs.
            device: Name of the device.
            kernel: The kernel.
        """
        return Source(inputs)

    def factors_shape(self, kernel: tf.Tensor) -> list[int] | None:
        """The shape in which factors of feature maps scale the kernel."""
        return None

    def algorithm_on(self, device: str) -> str:
        """The layer's algorithm; `"direct"` on a GPU, where cuDNN chooses."""
        on_cpu = device_type(device) == "CPU"
        algorithm = self.layer.algorithm
        return str(algorithm) if algorithm and on_cpu else "direct"

    def activation_among(self, computed: Collection[str]) -> str:
        """The layer's activation if it is one of these, else `"linear"`."""
        name = op_activation(self.layer.activation) or "linear"
        return name if name in computed else "linear"

    def with_activation(self, device: str) -> Epilogue | None:
        """The epilogue of a last stage with the activation in its pass.

        None if the stage does not have it there.
        """
        activation = self.activation_among(self.activations(device))
        return (
            None if activation == "linear" else Epilogue(activation=activation)
        )

    def activated(self, device: str, maps: tf.Tensor) -> tf.Tensor:
        """Feature maps of a last stage with the layer's activation."""
        activation = self.layer.activation
        linear = activation in (None, keras.activations.linear)
        if linear or self.with_activation(device) is not None:
            return maps
        return on_device(activation, device)(maps)

    def source_in_one_pass(
        self,
        inputs: tf.Tensor,
        device: str,
        kernel: tf.Tensor,
        windows: Windows,
    ) -> Source:
        """A source that takes a whole epilogue, if the stage does."""
        auto = self.algorithm_on(device) == "auto"
        if auto and in_one_pass(inputs, kernel, windows, device):
            return Source(inputs, activations=ops.ACTIVATIONS, in_one_pass=True)
        return Source(inputs, activations=self.activations(device))

    def on(
        self,
        device: str,
        x: tf.Tensor,
        weights: Sequence[tf.Tensor],
        first: int = 0,
        epilogue: Epilogue | None = None,
        zeros: Sequence[int] = NO_ZEROS,
    ) -> tf.Tensor:
        """Computes feature maps on a device, and later their gradients.

        Args:
            device: Name of the device.
            x: The input.
            weights: The kernel of the part, and maybe the bias.
            first: Number of the first filter, or channel, of the part.
            epilogue: As for `compute`.
            zeros: As for `compute`.
        """
        # Within the epilogue they would have no gradients.
        tensors = [] if epilogue is None else epilogue.tensors()
        count = len(weights)

        def run(x: tf.Tensor, *operands: tf.Tensor) -> tf.Tensor:
            after = epilogue
            if after is not None:
                after = after.with_tensors(operands[count:])
            return self.here(x, operands[:count], device, first, after, zeros)

        return on_device(run, device, input_first=True)(x, *weights, *tensors)

    def here(
        self,
        x: tf.Tensor,
        weights: Sequence[tf.Tensor],
        device: str,
        first: int = 0,
        epilogue: Epilogue | None = None,
        zeros: Sequence[int] = NO_ZEROS,
    ) -> tf.Tensor:
        """Computes feature maps where the program is; arguments as for `on`."""
        layer = self.layer
        channels_first = layer.data_format == "channels_first"
        # TensorFlow's CPU convolutions take channels last only.
        moves = channels_first and device_type(device) == "CPU"
        if moves:
            x = move_channels(x, 1, -1)
        # Weights come as they are stored; mixed precision converts them here.
        kernel, *bias = (tf.cast(weight, x.dtype) for weight in weights)
        if epilogue is not None:
            epilogue = epilogue.cast(x.dtype)
        part = Part(device, first, moves or not channels_first)
        # A layer has one race on each kind of processor, as it was measured for
        # a plan, and not one more for each part that a device may have.
        all_filters = (
            layer.filters if getattr(layer, "groups", 0) == 1 else None
        )
        with as_layer_of(all_filters):
            y = self.compute(x, kernel, bias, part, epilogue, zeros)
        return move_channels(y, -1, 1) if moves else y


def in_stages(
    stages: Sequence[Stage],
    device: str,
    x: tf.Tensor,
    weights: Sequence[tf.Tensor],
    epilogue: Epilogue | None = None,
    zeros: Sequence[int] = NO_ZEROS,
    first: int = 0,
) -> tf.Tensor:
    """Computes all stages of a layer on a device, one after the other.

    Args:
        stages: The stages.
        device: Name of the device.
        x: The input of the first stage.
        weights: The weights of all stages; a bias that the layer does not have
            is the last one's.
        epilogue: Epilogue of the last stage, without the bias; None if it takes
            none.
        zeros: Zeros around that stage's images.
        first: Number of its first filter among the layer's.
    """
    *before, last = stages
    for stage in before:
        count = len(stage.names)
        x = stage.on(device, x, weights[:count])
        weights = weights[count:]
    return last.on(device, x, weights, first, epilogue, zeros)
