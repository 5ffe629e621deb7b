"""The convolution of a layer's filters, or of a part of them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops
from tf_convpar.algorithms import _direct
from tf_convpar.algorithms import _groups
from tf_convpar.algorithms import _names
from tf_convpar.algorithms import _passes
from tf_convpar.algorithms._algorithm import Geometry
from tf_convpar.algorithms._batches import by_measurement
from tf_convpar.algorithms._choose import ASSUMED_BATCH
from tf_convpar.algorithms._tensors import sizes_of

# Pixels of all feature maps up to which arranging the kernel counts.
_FEW = 256


def check_algorithm(name: Any) -> None:
    """Raises ValueError unless `convolve` takes `name` for `algorithm`.

    ```python
    check_algorithm("winograd")
    ```
    """
    if name != "auto":
        _names.check_name(name)


@dataclasses.dataclass(frozen=True)
class Windows:
    """Where the windows of a layer lie, by the arguments of a Keras layer.

    ```python
    Windows(strides=(2, 2), padding="same")
    ```

    Attributes:
        strides: One stride per spatial axis.
        padding: `"valid"` or `"same"`.
        dilation_rate: One dilation rate per spatial axis.
        groups: Number of groups of the *whole* layer.
        channels_last: True where the channels are the last axis of images,
            False where they are the first after the batch. On a CPU TensorFlow
            supports only True.
    """

    strides: Sequence[int] = (1, 1)
    padding: str = "valid"
    dilation_rate: Sequence[int] = (1, 1)
    groups: int = 1
    channels_last: bool = True


def convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    windows: Windows = Windows(),
    *,
    filters: tuple[int, int] | None = None,
    algorithm: str = "direct",
    bias: tf.Tensor | None = None,
    factor: tf.Tensor | None = None,
    activation: str = "linear",
    added: tf.Tensor | None = None,
    joined: ops.Joined | None = None,
    zeros: Sequence[int] = (0, 0, 0, 0),
    remember: bool = False,
    device: str | None = None,
) -> tf.Tensor:
    """A convolution with all or some of a layer's filters.

    ```python
    y = convolve(x, kernel)  # all filters
    y = convolve(  # filters 8 to 15 of 32 in four groups
        x, kernel[..., 8:16], Windows(groups=4), filters=(8, 32)
    )
    y = convolve(x, kernel, algorithm="auto")
    ```

    Args:
        inputs: Images, `(batch, *spatial, channels)`, or
            `(batch, channels, *spatial)` where channels are not last.
        kernel: Kernel of the filters wanted,
            `(*window, channels // groups, width)`. They may be any contiguous
            range of the layer's filters.
        windows: Strides, padding, dilation, groups and data format.
        filters: First filter of the range, and the layer's number of filters;
            needed only where there is more than one group.
        algorithm: `"direct"`, TensorFlow's own; `"auto"`, the fastest by
            measurement for the forward pass and each gradient; or `"fft"`,
            `"winograd"` or `"gemm"`, of which the first two may name a tile
            size, `"winograd:4"`. What an algorithm does not compute is direct:
            strides and dilation (gemm takes strides, except in the input
            gradient), windows of one pixel (gemm takes them), and channels
            first. Algorithms other than `"direct"` are for CPUs.
        bias: One value for each filter wanted, which is added; None for no
            bias.
        factor: One value for each filter wanted, by which its feature map is
            multiplied before the bias is added; None for none. Only where the
            convolution is made `in_one_pass`.
        activation: Name of an activation, as for `ops.convolution`; likewise.
            `"relu"` also elsewhere, where there are no groups.
        added: Feature maps that are added before the activation; likewise.
        joined: How the inputs were made, if that is to be done in the same
            pass; likewise, for windows of one pixel and strides of 1.
        zeros: Zeros above, below, left and right of images, which have been
            found to be `in_one_pass` with them.
        remember: Whether what is made of the kernel is kept for the next call,
            for inference. It is made anew when the kernel has changed.
        device: Name of the device that `"auto"` measures; None for this
            process' own.

    Returns:
        The feature maps, `(batch, *new_spatial, width)`, or channels first
        where the inputs are.

    Raises:
        ValueError: There is no such algorithm.
    """
    check_algorithm(algorithm)
    run = functools.partial(
        _ungrouped,
        windows=windows,
        algorithm=algorithm,
        remember=remember,
        device=device,
    )
    if (
        algorithm == "auto"
        and remember
        and (any(zeros) or in_one_pass(inputs, kernel, windows, device))
    ):
        following = factor, bias, activation, added
        images = joined or inputs
        return _in_one_pass(images, kernel, windows, following, zeros)
    if windows.groups == 1:
        return run(inputs, kernel, bias, relu=activation == "relu")
    first, total = filters or (0, kernel.shape[-1])
    per_group = total // windows.groups
    axis = -1 if windows.channels_last else 1
    if not _groups.is_depthwise(
        kernel, per_group, first, windows.strides, windows.dilation_rate
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
        strides=tuple(windows.strides),
        padding=windows.padding,
        dilation_rate=tuple(windows.dilation_rate),
        data_format=(
            "channels_last" if windows.channels_last else "channels_first"
        ),
        algorithm=algorithm,
    )
    return _add_bias(maps, bias, windows)


def in_one_pass(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    windows: Windows,
    device: str | None = None,
) -> bool:
    """Whether this package's op computes a convolution in inference.

    It does where windows are single pixels, and where few pixels pass through a
    kernel: TensorFlow then takes as long to arrange the kernel as to multiply,
    at every call. Elsewhere an algorithm with fewer products may be faster,
    which a race finds out; this package's op does what is left
    (`benchmarks/inference`).

    Args:
        inputs: Images.
        kernel: The kernel, as a whole.
        windows: Where its windows lie.
        device: The device that a race is for, as for `convolve`.
    """
    window, strides = kernel.shape[:-2], windows.strides
    two = len(window) == 2 and len(set(strides)) == 1
    plain = math.prod(window) == max(strides) == 1
    if not (
        (two or plain)
        and windows.groups == max(windows.dilation_rate) == 1
        and windows.channels_last
        and inputs.dtype == kernel.dtype == tf.float32
        and ops.load()
    ):
        return False
    if math.prod(window) == 1 or None in inputs.shape[1:-1]:
        return math.prod(window) == 1
    rows = (inputs.shape[0] or ASSUMED_BATCH) * math.prod(
        -(-size // stride)
        for size, stride in zip(inputs.shape[1:-1], strides, strict=True)
    )
    if rows <= _FEW:
        return True
    choice = by_measurement(_geometry(inputs, kernel, windows), device)
    return choice.forward.name in ("direct", "gemm")


def _in_one_pass(
    inputs: tf.Tensor | ops.Joined,
    kernel: tf.Tensor,
    windows: Windows,
    following: tuple[Any, Any, str, Any],
    zeros: Sequence[int],
) -> tf.Tensor:
    if isinstance(inputs, tf.Tensor) and (
        inputs.shape.rank != kernel.shape.rank or inputs.shape.rank != 4
    ):
        # Single pixels, wherever they are.
        channels, filters = kernel.shape[-2:]
        *vectors, added = following
        if added is not None:
            added = tf.reshape(added, [1, 1, -1, filters])
        maps = ops.convolution(
            tf.reshape(inputs, [1, 1, -1, channels]),
            tf.reshape(kernel, [1, 1, channels, filters]),
            *(*vectors, added),
            remember=True,
        )
        return tf.reshape(maps, [*sizes_of(inputs)[:-1], filters])
    return ops.convolution(
        *(inputs, kernel, *following),
        stride=windows.strides[0],
        padding=windows.padding,
        zeros=zeros,
        remember=True,
    )


def _ungrouped(
    x: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor | None,
    relu: bool = False,
    *,
    windows: Windows,
    algorithm: str,
    remember: bool,
    device: str | None,
) -> tf.Tensor:
    geometry = _geometry(x, kernel, windows)
    if algorithm == "direct" or not windows.channels_last:
        maps = _direct.run(x, kernel, geometry, windows.channels_last)
        maps = _add_bias(maps, bias, windows)
        return tf.nn.relu(maps) if relu else maps
    if algorithm == "auto":
        choice = by_measurement(geometry, device)
    else:
        choice = _names.by_name(algorithm, geometry)
    return _passes.convolution(
        x, kernel, geometry, choice, bias, remember, relu
    )


def _geometry(x: tf.Tensor, kernel: tf.Tensor, windows: Windows) -> Geometry:
    image = x.shape[1:-1] if windows.channels_last else x.shape[2:]
    return Geometry(
        image=tuple(image),
        channels=kernel.shape[-2],
        filters=kernel.shape[-1],
        window=tuple(kernel.shape[:-2]),
        strides=tuple(windows.strides),
        padding=windows.padding,
        dilation=tuple(windows.dilation_rate),
        batch=x.shape[0],
        dtype=x.dtype.name,
    )


def _add_bias(
    maps: tf.Tensor, bias: tf.Tensor | None, windows: Windows
) -> tf.Tensor:
    if bias is None:
        return maps
    if windows.channels_last:
        # TensorFlow fuses this op with the convolution.
        return tf.nn.bias_add(maps, bias)
    return maps + tf.reshape(bias, [-1] + [1] * (maps.shape.rank - 2))
