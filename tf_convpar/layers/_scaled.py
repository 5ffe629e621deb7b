"""Convolutions that can be made again, with each feature map scaled.

In inference a normalization is a factor and a summand of each feature map. The
factor may as well scale the filter, and the summand be a part of the bias: then
no pass over the feature maps is left. A layer leaves a note on its result of
how that is made, for a normalization that finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar._compat.keras import training_of_call
from tf_convpar.algorithms import ASSUMED_BATCH

# Where a tensor has its note.
_NOTE = "_convpar_scaled"

# Makes feature maps again, with a factor and a summand of each.
Scaled = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def is_inference() -> bool:
    """Whether Keras says that this is no training step, but inference.

    Kernels are then likely to be the same next time.
    """
    return training_of_call() is False


def leave_note(
    maps: tf.Tensor,
    run: Callable[..., tf.Tensor],
    inputs: tf.Tensor,
    kernels: Sequence[tf.Tensor],
    bias: Sequence[tf.Tensor],
    shape: Sequence[int],
) -> None:
    """Notes how feature maps were made, where making them again may pay.

    It does in a graph, in which what nobody uses is never computed, and while
    the last kernel has fewer numbers than the feature maps.

    Args:
        maps: The feature maps, channels last.
        run: What was called with the inputs, the kernels and the bias.
        inputs: What the layer was called with.
        kernels: Its kernels; the last one is scaled.
        bias: Its bias, if it has one.
        shape: The shape in which factors scale the last kernel.
    """
    batch = maps.shape[0] or ASSUMED_BATCH
    numbers = batch * math.prod(n or 1 for n in maps.shape[1:])
    *others, kernel = kernels
    if tf.executing_eagerly() or numbers < math.prod(kernel.shape):
        return

    def scaled(factor: tf.Tensor, summand: tf.Tensor) -> tf.Tensor:
        if bias:
            summand += bias[0] * factor
        last = kernel * tf.reshape(factor, shape)
        return run(inputs, *others, last, summand)

    setattr(maps, _NOTE, scaled)


def note_of(maps: Any) -> Scaled | None:
    """The note on feature maps, if there is one."""
    found: Scaled | None = getattr(maps, _NOTE, None)
    return found
