"""Convolves with all filters of a layer, or a range of them."""

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
from tf_convpar.ops import NOTHING
from tf_convpar.ops import Epilogue

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
    """Strides, padding and the like, by the arguments of a Keras layer.

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
        zeros: Zeros above, below, left and right of images, beside those of the
            padding. Only for convolutions that are `in_one_pass`.
    """

    strides: Sequence[int] = (1, 1)
    padding: str = "valid"
    dilation_rate: Sequence[int] = (1, 1)
    groups: int = 1
    channels_last: bool = True
    zeros: Sequence[int] = (0, 0, 0, 0)


def convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    windows: Windows = Windows(),
    epilogue: Epilogue = NOTHING,
    *,
    filters: tuple[int, int] | None = None,
    algorithm: str = "direct",
    device: str | None = None,
) -> tf.Tensor:
    """A convolution with all or some of a layer's filters, and its epilogue.

    ```python
    y = convolve(x, kernel)  # all filters
    y = convolve(  # filters 8 to 15 of 32 in four groups
        x, kernel[..., 8:16], Windows(groups=4), filters=(8, 32)
    )
    y = convolve(  # bias and relu are a part of it
        x, kernel, epilogue=Epilogue(bias=b, activation="relu")
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
        epilogue: Bias, activation and the like, for the filters wanted. Its
            result does not depend on the algorithm; how much of it is done in
            the same pass does. Its `joined` is read only `in_one_pass`.
        filters: First filter of the range, and the layer's number of filters;
            needed only where there is more than one group.
        algorithm: `"direct"`, TensorFlow's own; `"auto"`, the fastest by
            measurement for the forward pass and each gradient; or `"fft"`,
            `"winograd"` or `"gemm"`, of which the first two may name a tile
            size, `"winograd:4"`. Passes that an algorithm refuses are direct:
            strides and dilation (gemm takes strides, except in the input
            gradient), windows of one pixel (gemm takes them), and channels
            first. Algorithms other than `"direct"` are for CPUs.
        device: Name of the device that `"auto"` measures; None for this
            process' own.

    Returns:
        The feature maps, `(batch, *new_spatial, width)`, or channels first
        where the inputs are.

    Raises:
        ValueError: There is no such algorithm.
    """
    check_algorithm(algorithm)
    if (
        algorithm == "auto"
        and epilogue.remember
        and (any(windows.zeros) or in_one_pass(inputs, kernel, windows, device))
    ):
        return _in_one_pass(inputs, kernel, windows, epilogue)
    run = functools.partial(
        _in_groups, filters=filters, algorithm=algorithm, device=device
    )
    epilogue = dataclasses.replace(epilogue, joined=None)
    if epilogue.is_of_training:
        return run(inputs, kernel, windows, epilogue)
    maps = run(inputs, kernel, windows, Epilogue(remember=epilogue.remember))
    return epilogue.applied(maps, windows.channels_last)


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
    which a race finds out; this package's op computes the others
    (`benchmarks/inference`).

    Args:
        inputs: Images.
        kernel: The kernel of all filters.
        windows: Strides, padding and the like.
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
    inputs: tf.Tensor, kernel: tf.Tensor, windows: Windows, epilogue: Epilogue
) -> tf.Tensor:
    rank = inputs.shape.rank
    if rank == kernel.shape.rank == 4:
        return ops.convolution(
            inputs,
            kernel,
            epilogue,
            stride=windows.strides[0],
            padding=windows.padding,
            zeros=windows.zeros,
        )
    # Single pixels, wherever they are.
    channels, filters = kernel.shape[-2:]
    if epilogue.added is not None:
        added = tf.reshape(epilogue.added, [1, 1, -1, filters])
        epilogue = dataclasses.replace(epilogue, added=added)
    maps = ops.convolution(
        tf.reshape(inputs, [1, 1, -1, channels]),
        tf.reshape(kernel, [1, 1, channels, filters]),
        epilogue,
    )
    return tf.reshape(maps, [*sizes_of(inputs)[:-1], filters])


def _in_groups(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    windows: Windows,
    epilogue: Epilogue,
    *,
    filters: tuple[int, int] | None,
    algorithm: str,
    device: str | None,
) -> tf.Tensor:
    """A convolution in any number of groups, with a bias and `relu`."""
    run = functools.partial(
        _ungrouped, windows=windows, algorithm=algorithm, device=device
    )
    if windows.groups == 1:
        return run(inputs, kernel, epilogue)
    first, total = filters or (0, kernel.shape[-1])
    per_group = total // windows.groups
    axis = -1 if windows.channels_last else 1
    if not _groups.is_depthwise(
        kernel, per_group, first, windows.strides, windows.dilation_rate
    ):
        return _groups.by_group(
            run, inputs, kernel, epilogue, per_group, first, axis
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
    return epilogue.applied(maps, windows.channels_last)


def _ungrouped(
    x: tf.Tensor,
    kernel: tf.Tensor,
    epilogue: Epilogue,
    *,
    windows: Windows,
    algorithm: str,
    device: str | None,
) -> tf.Tensor:
    geometry = _geometry(x, kernel, windows)
    if algorithm == "direct" or not windows.channels_last:
        maps = _direct.run(x, kernel, geometry, windows.channels_last)
        return epilogue.applied(maps, windows.channels_last)
    if algorithm == "auto":
        choice = by_measurement(geometry, device)
    else:
        choice = _names.by_name(algorithm, geometry)
    return _passes.convolution(x, kernel, geometry, choice, epilogue)


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
