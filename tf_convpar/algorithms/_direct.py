"""The direct algorithm: TensorFlow's own convolution.

    y[i] = sum over j of k[j] x[i + j]

as the definition has it, with `|output| |window| c f` multiplications for each
image. oneDNN or Eigen computes it on a CPU, and cuDNN, which knows several
algorithms of its own, on a GPU. TensorFlow reports no workspace for it. It is
the exact algorithm: its float32 results are those of plain Keras, bit for bit.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_convpar.algorithms._algorithm import Algorithm
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._phases import Phases
from tf_convpar.algorithms._workspace import Processor
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue


class Direct(Algorithm):
    """TensorFlow's convolution, and its gradients as separate ops.

    ```python
    Direct().forward(x, kernel, geometry)
    ```
    """

    name = "direct"

    def refuses(self, geometry: Geometry, which: str) -> str | None:
        """None: it computes every pass of every convolution."""
        return None

    def forward(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        epilogue: Epilogue = NOTHING,
    ) -> tf.Tensor:
        """The feature maps; differentiable. Nothing is remembered."""
        return epilogue.applied(run(x, kernel, geometry))

    def input_gradient(
        self,
        dy: tf.Tensor,
        kernel: tf.Tensor,
        geometry: Geometry,
        input_shape: Any,
    ) -> tf.Tensor:
        """The gradient for `x`."""
        if max(geometry.dilation) > 1:
            return _BY_PHASES.input_gradient(dy, kernel, geometry, input_shape)
        shape = tf.convert_to_tensor(input_shape, tf.int32)
        if len(geometry.window) == 3:
            return tf.raw_ops.Conv3DBackpropInputV2(
                input_sizes=shape,
                filter=kernel,
                out_backprop=dy,
                **_attributes(geometry),
            )
        if len(geometry.window) == 1:
            shape = tf.concat([shape[:1], [1], shape[1:]], 0)
        dx = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=shape,
            filter=_two_axes(kernel, 0, geometry),
            out_backprop=_two_axes(dy, 1, geometry),
            **_attributes(geometry),
        )
        return tf.squeeze(dx, 1) if len(geometry.window) == 1 else dx

    def kernel_gradient(
        self, x: tf.Tensor, dy: tf.Tensor, geometry: Geometry
    ) -> tf.Tensor:
        """The gradient for the kernel."""
        if max(geometry.dilation) > 1:
            return _BY_PHASES.kernel_gradient(x, dy, geometry)
        shape = [*geometry.window, geometry.channels, geometry.filters]
        if len(geometry.window) == 3:
            return tf.raw_ops.Conv3DBackpropFilterV2(
                input=x,
                filter_sizes=shape,
                out_backprop=dy,
                **_attributes(geometry),
            )
        dk = tf.raw_ops.Conv2DBackpropFilter(
            input=_two_axes(x, 1, geometry),
            filter_sizes=[1, *shape] if len(shape) == 3 else shape,
            out_backprop=_two_axes(dy, 1, geometry),
            **_attributes(geometry),
        )
        return tf.squeeze(dk, 0) if len(geometry.window) == 1 else dk

    def multiplications(self, geometry: Geometry, which: str) -> int:
        """Number of multiplications of the definition."""
        return geometry.multiplications

    def workspace(
        self, geometry: Geometry, which: str, on: Processor | None = None
    ) -> int:
        """0: TensorFlow reports no workspace."""
        return 0


# With dilation `tf.nn.convolution` is one of phases too: TensorFlow's ops for
# the gradients take none on a CPU.
_BY_PHASES = Phases("direct", lambda dense: Direct())


def run(
    x: tf.Tensor,
    kernel: tf.Tensor,
    geometry: Geometry,
    channels_last: bool = True,
) -> tf.Tensor:
    """TensorFlow's convolution, in either data format."""
    sizes = [x.shape[0], *geometry.output, geometry.filters]
    if 0 in sizes and channels_last:
        # oneDNN gives what is empty the shape of the images.
        nothing = tf.reshape(x, [-1])[:0] + tf.reshape(kernel, [-1])[:0]
        return tf.reshape(nothing, [tf.shape(x)[0], *sizes[1:]])
    spatial = {1: "W", 2: "HW", 3: "DHW"}[len(geometry.window)]
    maps: tf.Tensor = tf.nn.convolution(
        x,
        kernel,
        strides=list(geometry.strides),
        padding=geometry.padding.upper(),
        dilations=list(geometry.dilation),
        data_format=f"N{spatial}C" if channels_last else f"NC{spatial}",
    )
    return maps


def _two_axes(x: tf.Tensor, axis: int, geometry: Geometry) -> tf.Tensor:
    """Adds an axis where there is only one: the ops take two at least."""
    return tf.expand_dims(x, axis) if len(geometry.window) == 1 else x


def _attributes(geometry: Geometry) -> dict[str, Any]:
    more = (1,) * (2 - len(geometry.window))
    return {
        "strides": [1, *more, *geometry.strides, 1],
        "dilations": [1, *more, *geometry.dilation, 1],
        "padding": geometry.padding.upper(),
    }
