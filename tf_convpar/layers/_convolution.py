"""`ConvParallel1D`, `ConvParallel2D`, `ConvParallel3D`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import Windows
from tf_convpar.algorithms import convolve
from tf_convpar.layers._base import ConvParallel
from tf_convpar.layers._channel_scaling import Source
from tf_convpar.layers._channel_scaling import completed
from tf_convpar.layers._channel_scaling import unpadded
from tf_convpar.layers._concatenated_inputs import joined_of
from tf_convpar.layers._stage import NO_ZEROS
from tf_convpar.layers._stage import Part
from tf_convpar.layers._stage import Stage


class ConvolutionStage(Stage):
    """A convolution whose devices get all channels, and make their own maps."""

    def compute(
        self,
        x: tf.Tensor,
        kernel: tf.Tensor,
        bias: Sequence[tf.Tensor],
        part: Part,
        epilogue: ops.Epilogue | None,
        zeros: Sequence[int],
    ) -> tf.Tensor:
        """Computes it by the layer's algorithm."""
        layer = self.layer
        if layer.padding == "causal":
            reach = (layer.kernel_size[0] - 1) * layer.dilation_rate[0]
            x = _pad_before(x, reach, part.channels_last)
        return convolve(
            x,
            kernel,
            self._windows(part.channels_last, zeros),
            completed(epilogue or ops.NOTHING, bias),
            filters=(part.first, layer.filters),
            algorithm=self.algorithm_on(part.device),
            device=part.device,
        )

    def _windows(
        self, channels_last: bool, zeros: Sequence[int] = NO_ZEROS
    ) -> Windows:
        layer = self.layer
        return Windows(
            layer.strides,
            "valid" if layer.padding == "causal" else layer.padding,
            layer.dilation_rate,
            layer.groups,
            channels_last,
            zeros,
        )

    def is_of_keras(self, device: str) -> bool:
        """Whether Keras computes the layer."""
        return bool(self.layer.is_of_keras())

    def activations(self, device: str) -> Collection[str]:
        """`relu`, where an algorithm may compute it."""
        direct = self.algorithm_on(device) == "direct"
        return () if self.layer.groups > 1 or direct else ("relu",)

    def source(
        self, inputs: tf.Tensor, device: str, kernel: tf.Tensor
    ) -> Source:
        """The input without zeros around it, or the parts it is joined of."""
        windows = self._windows(self.layer.data_format == "channels_last")
        source = self.source_in_one_pass(inputs, device, kernel, windows)
        if not source.in_one_pass:
            return source
        image, zeros = unpadded(inputs)
        if any(zeros):
            return dataclasses.replace(source, inputs=image, zeros=zeros)
        if max(*self.layer.kernel_size, *self.layer.strides) == 1:
            # Each pixel of the feature maps is of one of the images.
            return dataclasses.replace(source, joined=joined_of(inputs))
        return source

    def factors_shape(self, kernel: tf.Tensor) -> list[int]:
        """One factor for each filter."""
        return list(kernel.shape[-1:])


class Convolution(ConvParallel):
    """A convolution of one stage."""

    def stages(self) -> list[Stage]:
        """The convolution."""
        return [ConvolutionStage(self)]


def _pad_before(x: tf.Tensor, steps: int, channels_last: bool) -> tf.Tensor:
    """Adds so many zeros before the first step of a sequence."""
    before: Sequence[Sequence[int]] = [(0, 0), (steps, 0), (0, 0)]
    if not channels_last:
        before = [(0, 0), (0, 0), (steps, 0)]
    return tf.pad(x, before)


@keras.saving.register_keras_serializable("tf_convpar", "ConvParallel1D")
class Conv1D(Convolution, keras.layers.Conv1D):
    """`keras.layers.Conv1D` with its kernels spread over devices.

    ```python
    layer = convpar.ConvParallel1D(96, 7, padding="causal", shards=(2, 1))
    ```

    It takes every argument of `keras.layers.Conv1D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.

    Input shape: `(batch, steps, channels)`, or with
    `data_format="channels_first"` `(batch, channels, steps)`.

    Raises:
        ValueError: `Conv1D` refuses an argument; `shards` are not valid; or
            `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable("tf_convpar", "ConvParallel2D")
class Conv2D(Convolution, keras.layers.Conv2D):
    """`keras.layers.Conv2D` with its kernels spread over devices.

    ```python
    with convpar.ConvParallelStrategy().scope():
        layer = convpar.ConvParallel2D(500, 5, shards=(300, 200))
    ```

    It takes every argument of `keras.layers.Conv2D`, in its order and with its
    meaning, then four of its own. From the same seed it starts from the same
    kernel as `Conv2D`, and gives the same feature maps, whatever the shards.
    Kernel and bias stay on the device of their shard, and so do their
    optimizer's slots in a model made in the strategy's scope.
    `.keras` and `.weights.h5` files and checkpoints hold the merged kernel,
    under the names that `Conv2D` gives it. So a file loads with any number of
    shards, and into a plain `Conv2D`.

    Args:
        shards: Kernels per device, in the order of the strategy's `devices`:
            counts that sum to `filters`, or weights such as `(3, 1)`, which
            are rounded to whole kernels. A device may get 0. With fewer
            numbers than devices, the others get none. None stands for the
            strategy's plan, else its `shares`, else equal shards. Outside a
            `ConvParallelStrategy` they refer to this machine's devices, and
            None means that nothing is split. With `split="samples"` they are
            each device's share of the samples.
        wire_dtype: The dtype in which feature maps and gradients of this
            layer travel: `"float32"`, `"bfloat16"` or `"float16"`; None for
            the strategy's, and without one for that of the computation.
        algorithm: How each device computes the convolution of its kernels and
            the gradients. `"direct"` or None computes as plain Keras does, to
            the last digit. `"auto"` takes the fastest algorithm for the
            forward pass and for each gradient; it is measured on the device
            the first time and remembered on disk. That is faster, and differs
            in the last digits. `"winograd"`, `"fft"` and `"gemm"` take that
            one; a tile size may follow a colon, as in `"winograd:4"`. Where
            an algorithm does not apply (strides, dilation, kernels of one
            pixel, GPUs) the direct one is taken. The choice is saved in the
            layer's config only; exports are plain.
        split: How the work is cut. With `"filters"` each device makes some of
            the feature maps of all samples, and feature maps travel. With
            `"samples"` each makes all feature maps of some samples, and
            kernels travel, which are fewer numbers in the early layers of most
            networks; kernels are stored in shards all the same. With
            `"chief"` nothing is cut, and the chief computes it. None stands
            for `"filters"` if `shards` are given, otherwise for what the
            strategy's plan says.

    Input shape: `(batch, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, height, width)`.

    Raises:
        ValueError: `Conv2D` refuses an argument; `shards` are not valid; or
            `wire_dtype`, `algorithm` or `split` is unknown.
    """


@keras.saving.register_keras_serializable("tf_convpar", "ConvParallel3D")
class Conv3D(Convolution, keras.layers.Conv3D):
    """`keras.layers.Conv3D` with its kernels spread over devices.

    ```python
    layer = convpar.ConvParallel3D(64, 3, shards=(3, 1))
    ```

    It takes every argument of `keras.layers.Conv3D`, then `shards`,
    `wire_dtype`, `algorithm` and `split`, which are those of `ConvParallel2D`.

    Input shape: `(batch, depth, height, width, channels)`, or with
    `data_format="channels_first"` `(batch, channels, depth, height, width)`.

    Raises:
        ValueError: `Conv3D` refuses an argument; `shards` are not valid; or
            `wire_dtype`, `algorithm` or `split` is unknown.
    """
