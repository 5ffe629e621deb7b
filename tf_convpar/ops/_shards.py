"""Joins feature maps from their shards, and cuts them into shards."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from . import _native
from . import _twin

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def concat_shards(
    shards: Sequence[Any],
    axis: int = -1,
    dtype: Any = None,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """Joins shards of unequal width along the channel axis, in one pass.

    ```python
    own = tf.ones((8, 14, 14, 300))
    came = tf.ones((8, 14, 14, 200), tf.bfloat16)  # over the network
    maps = concat_shards([own, came])  # (8, 14, 14, 500), float32
    ```

    The result equals, bit for bit, that of `tf.cast` for each shard and then
    `tf.concat`. The op runs on the current device. Its gradient is
    `split_shards`, which gives each shard its own dtype. It runs on the same
    device, whatever the device scope in which it is asked for.

    Args:
        shards: one or more tensors of shape `(batch, ..., width)` or `(batch,
            width, ...)` and rank 2 to 5. Each may be of another dtype:
            float16, bfloat16, float32 or float64. Widths may differ and may
            be zero.
        axis: the channel axis: -1 (channels last) or 1 (channels first).
        dtype: dtype of the result; None for that of the first shard.
        native: False for the pure-TensorFlow twin; True for the compiled op or
            an error; None for the compiled op if `load()` finds one.
            `native_on` says which of these a device needs.

    Returns:
        A tensor of the shards' shape, but for the channel axis, which is as
        long as theirs together.

    Raises:
        tf.errors.InvalidArgumentError: shards do not fit together, in rank or
            in an axis other than `axis`, or `axis` is neither -1 nor 1.
        ValueError: the same errors, while a graph is built; or there are no
            shards.
        TypeError: a dtype is none of the four.
        RuntimeError: `native=True` and the compiled op is not in use.
    """
    if not shards:
        raise ValueError(
            "Expected `shards` to have one or more tensors. Received none"
        )
    tensors = [tf.convert_to_tensor(shard) for shard in shards]
    for i, tensor in enumerate(tensors):
        _check_dtype(tensor.dtype, f"shard {i}")
    target = tensors[0].dtype if dtype is None else tf.as_dtype(dtype)
    _check_dtype(target, "`dtype`")
    if _use_native(native):
        return _native.concat(tensors, axis, target)
    return _twin.concat(tensors, axis, target)


def split_shards(
    value: Any,
    sizes: Sequence[int],
    axis: int = -1,
    dtypes: Any = None,
    *,
    native: bool | None = None,
) -> list[tf.Tensor]:
    """Cuts a tensor into contiguous shards along the channel axis, in one pass.

    ```python
    gradient = tf.ones((8, 14, 14, 500))
    dtypes = ["float32", "bfloat16"]
    own, sent = split_shards(gradient, [300, 200], dtypes=dtypes)
    # (8, 14, 14, 300) in float32 and (8, 14, 14, 200) in bfloat16
    ```

    The result equals, bit for bit, that of `tf.split` and then `tf.cast` for
    each shard. The op runs on the current device, and so does its gradient,
    `concat_shards`.

    Args:
        value: a tensor of float16, bfloat16, float32 or float64, of shape
            `(batch, ..., channels)` or `(batch, channels, ...)` and rank 2 to
            5.
        sizes: the width of each shard, zero or more; they sum to `channels`.
        axis: the channel axis: -1 (channels last) or 1 (channels first).
        dtypes: dtypes of the shards: one for all or one for each; None for
            that of `value`.
        native: True for the compiled op, False for its twin, None for
            whichever is available; see `concat_shards`.

    Returns:
        A list of tensors, one for each size, which have the shape of `value`
        but for their width.

    Raises:
        tf.errors.InvalidArgumentError: sizes are negative or do not sum to
            the channels, the rank is not 2 to 5, or `axis` is neither -1 nor
            1.
        ValueError: the same errors, while a graph is built; or there are no
            sizes, or not as many dtypes as sizes.
        TypeError: a dtype is none of the four.
        RuntimeError: `native=True` and the compiled op is not in use.
    """
    widths = [int(size) for size in sizes]
    if not widths:
        raise ValueError("Expected one or more `sizes`. Received none")
    tensor = tf.convert_to_tensor(value)
    _check_dtype(tensor.dtype, "`value`")
    if isinstance(dtypes, (list, tuple)):
        targets = [tf.as_dtype(dtype) for dtype in dtypes]
    else:
        one = tensor.dtype if dtypes is None else tf.as_dtype(dtypes)
        targets = [one] * len(widths)
    if len(targets) != len(widths):
        raise ValueError(
            f"Expected one dtype for each of {len(widths)} sizes. Received "
            f"{len(targets)} dtypes"
        )
    for i, target in enumerate(targets):
        _check_dtype(target, f"shard {i}")
    if _use_native(native):
        return _native.split(tensor, widths, axis, targets)
    return _twin.split(tensor, widths, axis, targets)


def _use_native(native: bool | None) -> bool:
    # With True, _library.module() raises an error if there is no library.
    return _library.load() if native is None else native


def _check_dtype(dtype: tf.DType, what: str) -> None:
    if dtype not in _DTYPES:
        raise TypeError(
            "Expected float16, bfloat16, float32 or float64. Received "
            f"{dtype.name} for {what}"
        )
