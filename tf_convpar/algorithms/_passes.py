"""The three passes of a convolution, each by an algorithm of its own.

Forward `y = conv(x, k)`, input gradient `dx = conv'(dy, k)` and kernel
gradient `dk = conv''(x, dy)` are the three partial derivatives of one form
that is linear in each of `x`, `k` and `dy`. So the gradients of each of them
are the two others, and three functions that name one another have
derivatives of any order, all by the algorithms chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar._compat.tensorflow import stop_recording
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._names import Choice
from tf_convpar.algorithms._tensors import sizes_of
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue


def convolution(
    x: tf.Tensor,
    kernel: tf.Tensor,
    geometry: Geometry,
    choice: Choice,
    epilogue: Epilogue = NOTHING,
) -> tf.Tensor:
    """The feature maps; `choice` has the algorithms of their gradients too.

    ```python
    y = convolution(x, kernel, geometry, by_name("winograd", geometry))
    ```

    Args:
        x: Images, `(batch, *image, channels)`.
        kernel: Kernel, `(*window, channels, filters)`.
        geometry: Shape of the convolution.
        choice: An algorithm for each pass.
        epilogue: A bias and `relu`, at most.
    """
    if choice.is_direct and None in geometry.image:
        # How windows lie in images of unknown size, TensorFlow knows.
        return choice.forward.forward(x, kernel, geometry, epilogue)
    passes = _Passes(geometry, choice, epilogue.remember)
    if epilogue.bias is not None:
        return passes.forward_with_bias(x, kernel, epilogue)
    if choice.is_direct:
        return choice.forward.forward(x, kernel, geometry, epilogue)
    return epilogue.applied(passes.forward(x, kernel))


class _Passes:
    """The three passes of one convolution, each differentiable.

    The ops of an algorithm are hidden from tapes: they would keep its
    intermediate results for a gradient that nobody asks for, and functions
    and branches would need a gradient of every op.
    """

    def __init__(
        self, geometry: Geometry, choice: Choice, remember: bool
    ) -> None:
        self._geometry = geometry
        self._choice = choice
        self._bare = Epilogue(remember=remember)

    def forward(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
            y = self._forward(x, kernel, self._bare)
            return y, self._gradients(x, kernel)

        return run(ops.of_this_graph(x), ops.of_this_graph(kernel))

    def forward_with_bias(
        self, x: tf.Tensor, kernel: tf.Tensor, epilogue: Epilogue
    ) -> tf.Tensor:
        @tf.custom_gradient
        def run(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> Any:
            gradients = self._gradients(x, kernel)
            with_bias = dataclasses.replace(epilogue, bias=bias)
            # The gradient keeps it, and tapes that look for another derivative
            # must not find the op that has none.
            y = tf.stop_gradient(self._forward(x, kernel, with_bias))

            @_once
            def through_activation(
                dy: tf.Tensor,
            ) -> tuple[tf.Tensor, tf.Tensor]:
                if epilogue.activation == "linear":
                    return dy, ops.bias_gradient(dy)
                # Numbers above 0 are so before and after the activation.
                zeros = tf.zeros_like(bias)
                return ops.biased_gradient(dy, y, zeros, "relu")

            def gradient(dy: tf.Tensor) -> Any:
                dy, by_bias = through_activation(dy)
                return *gradients(dy), by_bias

            return y, gradient

        return run(x, kernel, epilogue.bias)

    def input_gradient(
        self, dy: tf.Tensor, kernel: tf.Tensor, shape: Any
    ) -> tf.Tensor:
        geometry, algorithm = self._geometry, self._choice.input_gradient

        @tf.custom_gradient
        def run(dy: tf.Tensor, kernel: tf.Tensor) -> Any:
            def gradient(ddx: tf.Tensor) -> Any:
                return self.forward(ddx, kernel), self.kernel_gradient(ddx, dy)

            with stop_recording():
                dx = algorithm.input_gradient(dy, kernel, geometry, shape)
            return dx, gradient

        return run(ops.of_this_graph(dy), ops.of_this_graph(kernel))

    def kernel_gradient(self, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        geometry, algorithm = self._geometry, self._choice.kernel_gradient
        shape = sizes_of(x)

        @tf.custom_gradient
        def run(x: tf.Tensor, dy: tf.Tensor) -> Any:
            def gradient(ddk: tf.Tensor) -> Any:
                return self.input_gradient(dy, ddk, shape), self.forward(x, ddk)

            with stop_recording():
                dk = algorithm.kernel_gradient(x, dy, geometry)
            return dk, gradient

        return run(ops.of_this_graph(x), ops.of_this_graph(dy))

    def _forward(
        self, x: tf.Tensor, kernel: tf.Tensor, epilogue: Epilogue
    ) -> tf.Tensor:
        with stop_recording():
            return self._choice.forward.forward(
                x, kernel, self._geometry, epilogue
            )

    def _gradients(self, x: tf.Tensor, kernel: tf.Tensor) -> Any:
        shape = sizes_of(x)

        def gradient(dy: tf.Tensor) -> Any:
            return (
                self.input_gradient(dy, kernel, shape),
                self.kernel_gradient(x, dy),
            )

        return gradient


def _once(
    run: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """A function of one tensor that is computed once in a graph.

    `on_device` asks for the gradient of the input first, and then for those of
    the weights: the gradient through the activation would be computed twice.
    """
    last_call: list[Any] = []

    def run_once(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if tf.executing_eagerly():
            return run(x)
        graph = tf.compat.v1.get_default_graph()
        if not (last_call and last_call[0] is x and last_call[1] is graph):
            last_call[:] = [x, graph, run(x)]
        result: tuple[tf.Tensor, tf.Tensor] = last_call[2]
        return result

    return run_once
