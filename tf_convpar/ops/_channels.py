"""The three ops of a normalization: moments, sums and scaling by channel.

Each reads its feature maps once. The gradients of the three consist of the
same three ops, to any order.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._activations import ACTIVATIONS
from ._devices import same_device


def channel_moments(
    maps: tf.Tensor, axis: int = -1, *, native: bool | None = None
) -> tf.Tensor:
    """The mean and the variance of each channel.

    ```python
    mean, variance = tf.unstack(channel_moments(tf.ones((8, 14, 14, 500))))
    ```

    The compiled op sums up one part of the maps at a time, while that part is
    in a cache. It combines the moments of the parts (Chan, Golub and LeVeque,
    "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979).

    Args:
        maps: Feature maps of any floating dtype and rank. Empty maps have
            moments of 0.
        axis: The channel axis.
        native: True for the compiled op, False for TensorFlow's own ops, None
            for the compiled op if `load()` finds one. The compiled op takes
            float32 with channels last; other maps always use TensorFlow's ops.

    Returns:
        A tensor of shape `(2, channels)` in the dtype of the maps. The
        variance is divided by the number of elements, not by one less.
    """
    maps = tf.convert_to_tensor(maps)
    if is_native(maps, axis, native):
        return _library.module().tf_convpar_channel_moments(maps=maps)
    axes, along = _around(maps, axis)
    # `tf.nn.moments` stops the gradient of the mean within the variance, so
    # its second derivatives are wrong.
    mean = tf.reduce_mean(maps, axes)
    variance = tf.reduce_mean(tf.square(maps - along(mean)), axes)
    is_any = tf.size(maps, tf.int64) > 0
    return tf.stack(
        [tf.where(is_any, m, tf.zeros_like(m)) for m in (mean, variance)]
    )


def channel_sums(
    gradients: tf.Tensor,
    maps: tf.Tensor,
    means: tf.Tensor,
    axis: int = -1,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """Sums by channel: of gradients, and of gradients times centred maps.

    ```python
    by_offset, by_scale = tf.unstack(channel_sums(dy, x, mean))
    ```

    Args:
        gradients: Gradients of a result that has the shape of the maps.
        maps: Feature maps of the same shape and dtype.
        means: Values of shape `(channels,)`, which are subtracted from the
            maps first.
        axis: The channel axis.
        native: True for the compiled op, False for TensorFlow's own ops, None
            for whichever is available; see `channel_moments`.

    Returns:
        A tensor of shape `(2, channels)`: the sums of `gradients`, and those
        of `gradients * (maps - means)`.
    """
    maps = tf.convert_to_tensor(maps)
    if is_native(maps, axis, native):
        return _library.module().tf_convpar_channel_sums(
            gradients=gradients, maps=maps, means=means
        )
    axes, along = _around(maps, axis)
    return tf.stack(
        [
            tf.reduce_sum(gradients, axes),
            tf.reduce_sum(gradients * (maps - along(means)), axes),
        ]
    )


def scale_channels(
    maps: Sequence[tf.Tensor],
    scales: Sequence[tf.Tensor],
    offset: tf.Tensor,
    axis: int = -1,
    *,
    activation: str = "linear",
    native: bool | None = None,
) -> tf.Tensor:
    """The sum of an offset and of maps whose channels are scaled by factors.

    ```python
    slope = gamma / deviation
    y = scale_channels([x], [slope], beta - slope * mean)
    ```

    Args:
        maps: Tensors of feature maps, all of one shape and dtype. The compiled
            op takes one or two of them.
        scales: A factor for each channel, of shape `(channels,)`; one such
            vector for each tensor in `maps`.
        offset: A summand for each channel, of shape `(channels,)`.
        axis: The channel axis.
        activation: Activation of the sum: `"linear"` for none, `"relu"`,
            `"relu6"` or `"silu"`.
        native: True for the compiled op, False for TensorFlow's own ops, None
            for whichever is available; see `channel_moments`.

    Returns:
        A tensor of the shape and dtype of each of the maps.
    """
    maps = [tf.convert_to_tensor(x) for x in maps]
    if len(maps) <= _MOST_MAPS and is_native(maps[0], axis, native):
        return _library.module().tf_convpar_scale_channels(
            maps=maps, scales=scales, offset=offset, activation=activation
        )
    _, along = _around(maps[0], axis)
    parts = [x * along(s) for x, s in zip(maps, scales, strict=True)]
    return ACTIVATIONS[activation].value(tf.add_n(parts) + along(offset))


_MOST_MAPS = 2


def is_native(maps: tf.Tensor, axis: int, native: bool | None) -> bool:
    """Whether the compiled op is wanted, and takes these maps."""
    last = axis in (-1, maps.shape.rank - 1)
    if not last or maps.dtype != tf.float32:
        return False
    return _library.load() if native is None else native


def _around(maps: tf.Tensor, axis: int) -> tuple[list[int], Any]:
    """All axes but one, and a function that lays a vector along that one."""
    rank = maps.shape.rank
    axes = [a for a in range(rank) if a != axis % rank]
    shape = [-1 if a == axis % rank else 1 for a in range(rank)]
    return axes, lambda vector: tf.reshape(vector, shape)


@tf.RegisterGradient("TfConvpar>ChannelMoments")
def _moments_gradient(op: Any, upstream: tf.Tensor) -> tf.Tensor:
    # d mean / dx = 1 / n, d variance / dx = 2 (x - mean) / n
    with same_device(op.outputs[0].device):
        (x,), (mean, _) = op.inputs, tf.unstack(op.outputs[0])
        numbers = tf.size(x, tf.int64) // tf.maximum(tf.size(mean, tf.int64), 1)
        n = tf.cast(tf.maximum(numbers, 1), x.dtype)
        by_mean, by_variance = tf.unstack(upstream / n)
        scale = 2 * by_variance
        return scale_channels([x], [scale], by_mean - scale * mean)


@tf.RegisterGradient("TfConvpar>ChannelSums")
def _sums_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    with same_device(op.outputs[0].device):
        gradients, maps, means = op.inputs
        by_sum, by_product = tf.unstack(upstream)
        sums, _ = tf.unstack(op.outputs[0])
        return [
            scale_channels([maps], [by_product], by_sum - by_product * means),
            scale_channels([gradients], [by_product], tf.zeros_like(means)),
            -by_product * sums,
        ]


@tf.RegisterGradient("TfConvpar>ScaleChannels")
def _scale_gradient(op: Any, upstream: tf.Tensor) -> list[tf.Tensor]:
    with same_device(op.outputs[0].device):
        n = op.get_attr("N")
        maps, scales = op.inputs[:n], op.inputs[n : 2 * n]
        activation = op.get_attr("activation").decode()
        if activation != "linear":
            inputs = scale_channels(maps, scales, op.inputs[-1])
            upstream = upstream * ACTIVATIONS[activation].slope(inputs)
        zeros = tf.zeros_like(scales[0])
        sums = [channel_sums(upstream, x, zeros) for x in maps]
        return [
            *(scale_channels([upstream], [scale], zeros) for scale in scales),
            *(by_scale for _, by_scale in map(tf.unstack, sums)),
            tf.unstack(sums[0])[0],
        ]
