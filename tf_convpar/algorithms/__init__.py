"""How one device computes one convolution; knows nothing of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar.algorithms import _direct
from tf_convpar.algorithms import _groups
from tf_convpar.algorithms import _passes
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._groups import depthwise_conv as depthwise_conv

__all__ = ["check_algorithm", "convolve", "depthwise_conv"]


def check_algorithm(name: Any) -> None:
    """Raises ValueError unless `convolve` takes it for `algorithm`.

    ```python
    check_algorithm("winograd")
    ```
    """
    if name != "auto":
        _passes.check_name(name)


def convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    dilation_rate: Sequence[int] = (1, 1),
    groups: int = 1,
    filters: tuple[int, int] | None = None,
    channels_last: bool = True,
    *,
    algorithm: str = "direct",
    bias: tf.Tensor | None = None,
    remember: bool = False,
    device: str | None = None,
) -> tf.Tensor:
    """A convolution with some of a layer's filters.

    ```python
    y = convolve(x, kernel)  # all filters
    y = convolve(  # filters 8 to 15 of 32 in four groups
        x, kernel[..., 8:16], groups=4, filters=(8, 32)
    )
    y = convolve(x, kernel, algorithm="auto")
    ```

    Args:
        inputs: `(batch, *spatial, channels)`, or `(batch, channels, *spatial)`
            where `channels_last` is False.
        kernel: `(*window, channels // groups, width)`: the filters wanted,
            which may be any contiguous range of the layer's.
        strides: One per spatial axis.
        padding: `"valid"` or `"same"`.
        dilation_rate: One per spatial axis.
        groups: Groups of the *whole* layer.
        filters: First filter of the range, and the layer's number of filters;
            needed only where `groups` is over 1.
        channels_last: The data format. On a CPU TensorFlow supports no other.
        algorithm: `"direct"`, TensorFlow's own; `"auto"`, the fastest by
            measurement for the forward pass and each gradient; or `"fft"`,
            `"winograd"` or `"gemm"`, of which the first two may name a tile
            size, `"winograd:4"`. What an algorithm does not compute is direct:
            strides and dilation (gemm takes strides, forward), windows of one
            pixel, and channels first. Algorithms other than `"direct"` are for
            CPUs.
        bias: One value for each filter wanted; added.
        remember: Whether the kernel's spectrum is kept for the next call, for
            inference. A kernel that changes is noticed.
        device: What `"auto"` measures on; None for this process' own.

    Returns:
        `(batch, *new_spatial, width)`, or channels first as the inputs are.

    Raises:
        ValueError: There is no such algorithm.
    """
    check_algorithm(algorithm)
    axis = -1 if channels_last else 1
    rank = kernel.shape.rank - 2

    def add_bias(maps: tf.Tensor, bias: tf.Tensor | None) -> tf.Tensor:
        if bias is None:
            return maps
        if channels_last:
            # TensorFlow fuses that with the convolution.
            return tf.nn.bias_add(maps, bias)
        return maps + tf.reshape(bias, [-1] + [1] * rank)

    def run(
        x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None
    ) -> tf.Tensor:
        image = x.shape[1:-1] if channels_last else x.shape[2:]
        geometry = Geometry(
            image=tuple(image),
            channels=kernel.shape[-2],
            filters=kernel.shape[-1],
            window=tuple(kernel.shape[:-2]),
            strides=tuple(strides),
            padding=padding,
            dilation=tuple(dilation_rate),
            batch=x.shape[0],
            dtype=x.dtype.name,
        )
        if algorithm == "direct" or not channels_last:
            maps = _direct.run(x, kernel, geometry, channels_last)
            return add_bias(maps, bias)
        if algorithm == "auto":
            choice = _passes.by_measurement(geometry, device)
        else:
            choice = _passes.by_name(algorithm, geometry)
        return _passes.convolution(x, kernel, geometry, choice, bias, remember)

    if groups == 1:
        return run(inputs, kernel, bias)
    first, total = filters or (0, kernel.shape[-1])
    per_group = total // groups
    if not _groups.is_depthwise(
        kernel, per_group, first, strides, dilation_rate
    ):
        return _groups.by_group(
            run, inputs, kernel, bias, per_group, first, axis
        )
    maps = _groups.depthwise(
        inputs,
        kernel,
        per_group,
        first,
        axis,
        strides=tuple(strides),
        padding=padding,
        dilation_rate=tuple(dilation_rate),
        data_format="channels_last" if channels_last else "channels_first",
    )
    return add_bias(maps, bias)
