"""Statistics of channels in batch normalization, as ops on rows of numbers.

Each op here is six to fourteen of TensorFlow's. Of those a model with a hundred
normalizations has more than of all others, and each of them costs a core some
microseconds, however few numbers it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device
from ._twin_gradients import register


def affine(
    moments: tf.Tensor,
    gamma: tf.Tensor | None = None,
    beta: tf.Tensor | None = None,
    epsilon: float = 1e-3,
    *,
    native: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The factor and the summand of each channel in a normalization.

    ```python
    scale, offset = affine(channel_moments(x), gamma, beta)
    y = x * scale + offset
    ```

    Args:
        moments: Means and variances, `(2, channels)`.
        gamma: A factor for each channel; None for none.
        beta: A summand for each channel; None for none.
        epsilon: Summand of variances.
        native: True for the compiled op, which takes float32 on a CPU; False
            for TensorFlow's own; None for the compiled one if `load()` finds
            it.

    Returns:
        The factors and the summands, each `(channels,)`.
    """
    moments = tf.convert_to_tensor(moments)
    if _is_native(moments, native):
        none = tf.zeros([0])
        scale, offset = _library.module().tf_convpar_affine(
            moments=moments,
            gamma=none if gamma is None else gamma,
            beta=none if beta is None else beta,
            epsilon=epsilon,
        )
        return scale, offset
    mean, variance = tf.unstack(moments)
    scale = tf.math.rsqrt(variance + epsilon)
    scale = scale if gamma is None else scale * gamma
    offset = -mean * scale
    return scale, offset if beta is None else offset + beta


@tf.RegisterGradient("TfConvpar>Affine")
def _gradients(
    op: Any, by_scale: tf.Tensor, by_offset: tf.Tensor
) -> list[tf.Tensor]:
    """Gradients of gamma (variance + epsilon)^-1/2 and beta - mean scale."""
    moments, gamma, beta = op.inputs
    with same_device(op.outputs[0].device):
        mean, variance = tf.unstack(moments)
        # The output would do, but not for a second derivative of it.
        inverse = tf.math.rsqrt(variance + op.get_attr("epsilon"))
        scale = inverse if gamma.shape[0] == 0 else inverse * gamma
        total = by_scale - mean * by_offset
        by_variance = -0.5 * total * scale * tf.square(inverse)
        return [
            tf.stack([-scale * by_offset, by_variance]),
            gamma if gamma.shape[0] == 0 else total * inverse,
            beta if beta.shape[0] == 0 else by_offset,
        ]


def batch_normalization_gradient(
    sums: tf.Tensor,
    moments: tf.Tensor,
    gamma: tf.Tensor | None,
    one_of_n: tf.Tensor,
    epsilon: float,
    *,
    give_way: bool = False,
    native: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradient of a normalization by the moments of its maps, in rows.

    ```python
    moments = channel_moments(x)
    by_maps, by_all, by_gamma = batch_normalization_gradient(
        channel_sums(dy, x, moments[0]), moments, gamma, 1 / n, epsilon
    )
    dx = scale * dy + by_maps * x + by_all
    ```

    With x^ = (x - mean) inverse and n numbers in each channel, d beta is the
    sum of dy, d gamma that of dy x^, and dx = scale (dy - d beta / n -
    x^ d gamma / n). Source: Ioffe and Szegedy, "Batch Normalization", 2015,
    section 3.

    Args:
        sums: Sums of dy, and of dy (x - mean), `(2, channels)`.
        moments: Means and variances, `(2, channels)`.
        gamma: A factor for each channel; None for none.
        one_of_n: 1 / n, a scalar of the dtype of the sums.
        epsilon: Summand of variances.
        give_way: Whether threads that send something have their turn first:
            the other devices wait for that.
        native: As for `affine`.

    Returns:
        The factor of the maps, the summand, and the gradient by gamma, each
        `(channels,)`.
    """
    if _is_native(sums, native):
        by_maps, by_all, by_gamma = (
            _library.module().tf_convpar_batch_normalization_gradient(
                sums=sums,
                moments=moments,
                gamma=tf.zeros([0]) if gamma is None else gamma,
                one_of_n=one_of_n,
                epsilon=epsilon,
                give_way=give_way,
            )
        )
        return by_maps, by_all, by_gamma
    mean, variance = tf.unstack(moments)
    by_beta, centred = tf.unstack(sums)
    inverse = tf.math.rsqrt(variance + epsilon)
    scale = inverse if gamma is None else inverse * gamma
    by_gamma = centred * inverse
    by_maps = -scale * inverse * by_gamma * one_of_n
    by_all = -scale * by_beta * one_of_n - by_maps * mean
    return by_maps, by_all, by_gamma


def _batch_normalization_gradient_twin(
    sums: tf.Tensor,
    moments: tf.Tensor,
    gamma: tf.Tensor,
    one_of_n: tf.Tensor,
    epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    # The compiled op has no values for none.
    scale = gamma if gamma.shape[0] else None
    return batch_normalization_gradient(
        sums, moments, scale, one_of_n, epsilon, native=False
    )


register(
    "BatchNormalizationGradient",
    _batch_normalization_gradient_twin,
    ["epsilon"],
)


def merged_moments(
    fractions: tf.Tensor,
    rows: Sequence[tf.Tensor],
    *,
    give_way: bool = False,
    native: bool | None = None,
) -> tf.Tensor:
    """Moments of all maps, from the moments of parts of them.

    ```python
    merged_moments(tf.constant([0.75, 0.25]), [of_24_images, of_8_images])
    ```

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm
    for Computing Sample Variances", 1979, which keeps the digits that sums of
    squares lose.

    Args:
        fractions: How much of all maps each part is, `(parts,)`.
        rows: Means and variances of each part, `(2, channels)`.
        give_way: Whether threads that send something have their turn before
            the device goes on: what the last device has computed leaves first.
        native: As for `affine`.

    Returns:
        Means and variances of all, `(2, channels)`.
    """
    if _is_native(rows[0], native):
        merged: tf.Tensor = _library.module().tf_convpar_merged_moments(
            fractions=fractions, rows=list(rows), give_way=give_way
        )
        return merged
    means, variances = tf.unstack(tf.stack(rows, 1))
    weights = fractions[:, None]
    mean = tf.reduce_sum(weights * means, 0)
    within = variances + tf.square(means - mean)
    return tf.stack([mean, tf.reduce_sum(weights * within, 0)])


register(
    "MergedMoments",
    lambda fractions, *rows: merged_moments(fractions, rows, native=False),
)


def moved_moments(
    moving: Sequence[tf.Tensor],
    moments: tf.Tensor,
    momentum: float,
    *,
    native: bool | None = None,
) -> list[tf.Tensor]:
    """Moving averages of moments, after another batch.

    ```python
    mean, variance = moved_moments([mean, variance], moments, 0.99)
    ```

    Args:
        moving: Means and variances as they were, each `(channels,)`.
        moments: Those of the batch, `(2, channels)`.
        momentum: Fraction of the old averages that is kept.
        native: As for `affine`.

    Returns:
        The new averages, in the dtypes of the old. They have no gradients.
    """
    keep, new = momentum, 1.0 - momentum
    alike = all(before.dtype == moments.dtype for before in moving)
    # A callback may change a momentum that is a variable.
    is_number = isinstance(momentum, int | float)
    if alike and is_number and _is_native(moments, native):
        mean, variance = moving
        return list(
            _library.module().tf_convpar_moved_moments(
                moving_mean=mean,
                moving_variance=variance,
                moments=moments,
                keep=keep,
                new=new,
            )
        )
    return [
        tf.cast(
            tf.stop_gradient(
                tf.cast(before, moment.dtype) * keep + moment * new
            ),
            before.dtype,
        )
        for before, moment in zip(moving, tf.unstack(moments), strict=True)
    ]


# Like all that Keras assigns in a step, they are no part of the loss.
tf.no_gradient("TfConvpar>MovedMoments")


def _is_native(row: tf.Tensor, native: bool | None) -> bool:
    wanted = _library.load() if native is None else native
    return row.dtype == tf.float32 and wanted
