"""Convolutions that can be made again, with each feature map scaled.

In inference a normalization is a factor and a summand of each feature map. The
factor may as well scale the filter, and the summand be a part of the bias: then
no pass over the feature maps is left. A layer leaves a note on its result of
how that is made, for a normalization that finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any
from typing import NamedTuple
from typing import Protocol

import tensorflow as tf

from tf_convpar._compat.keras import training_of_call
from tf_convpar.algorithms import ASSUMED_BATCH

# Where a tensor has its note, and where an image with zeros around it has one.
_NOTE, _UNPADDED = "_convpar_scaled", "_convpar_unpadded"


class Scaled(Protocol):
    """Makes feature maps again, with a factor and a summand of each.

    Attributes:
        activations: Names of those that it computes in the same pass.
        adds: Whether it adds other feature maps in the same pass.
    """

    activations: Collection[str]
    adds: bool

    def __call__(
        self,
        factor: tf.Tensor,
        summand: tf.Tensor,
        activation: str = ...,
        added: tf.Tensor | None = ...,
    ) -> tf.Tensor:
        """The feature maps, and what else it computes in the same pass."""


class Again(NamedTuple):
    """Of what a layer is computed again, with its feature maps scaled.

    Attributes:
        inputs: What it is computed of.
        extra: What else its last stage then takes.
        activations: Names of those that this stage computes in its pass.
        by_itself: Whether that stage takes factors by themselves, and feature
            maps to add. Elsewhere factors scale the kernel.
    """

    inputs: tf.Tensor
    extra: Mapping[str, Any] = MappingProxyType({})
    activations: Collection[str] = ()
    by_itself: bool = False


def is_inference() -> bool:
    """Whether Keras says that this is no training step, but inference.

    Kernels are then likely to be the same next time.
    """
    return training_of_call() is False


def leave_note(
    maps: tf.Tensor,
    run: Callable[..., tf.Tensor],
    again: Again,
    kernels: Sequence[tf.Tensor],
    bias: Sequence[tf.Tensor],
    shape: Sequence[int],
) -> None:
    """Notes how feature maps were made, where making them again may pay.

    It does in a graph, in which what nobody uses is never computed. The last
    kernel must have fewer numbers than the feature maps if it is scaled.

    Args:
        maps: The feature maps, channels last.
        run: What was called with the inputs, the kernels and the bias.
        again: Of what the layer is computed.
        kernels: Its kernels; the last one is scaled.
        bias: Its bias, if it has one.
        shape: The shape in which factors scale the last kernel.
    """
    batch = maps.shape[0] or ASSUMED_BATCH
    numbers = batch * math.prod(n or 1 for n in maps.shape[1:])
    *others, kernel = kernels
    inputs, extra, activations, by_itself = again
    large = not by_itself and numbers < math.prod(kernel.shape)
    if tf.executing_eagerly() or large:
        return

    def scaled(
        factor: tf.Tensor,
        summand: tf.Tensor,
        activation: str = "linear",
        added: tf.Tensor | None = None,
    ) -> tf.Tensor:
        if bias:
            summand += bias[0] * factor
        more = dict(extra)
        if activations:
            more["activation"] = activation
        if by_itself:
            more |= {"factor": factor, "added": added}
            return run(inputs, *others, kernel, summand, **more)
        last = kernel * tf.reshape(factor, shape)
        return run(inputs, *others, last, summand, **more)

    found: Any = scaled
    found.activations = activations
    found.adds = by_itself
    setattr(maps, _NOTE, found)


def leave_unpadded(
    padded: tf.Tensor, image: tf.Tensor, zeros: Sequence[int]
) -> None:
    """Notes of what an image with zeros around it was made, in a graph.

    Args:
        padded: The image with its zeros.
        image: The image.
        zeros: Zeros above, below, left and right of it.
    """
    if not tf.executing_eagerly():
        setattr(padded, _UNPADDED, (image, tuple(zeros)))


def unpadded(x: tf.Tensor) -> tuple[tf.Tensor, tuple[int, ...]]:
    """An image and the zeros around it; as far as a note says so."""
    found: tuple[tf.Tensor, tuple[int, ...]] = getattr(
        x, _UNPADDED, (x, (0, 0, 0, 0))
    )
    return found


def has_note(x: Any) -> bool:
    """Whether something else may be made of what a tensor was made of."""
    return hasattr(x, _NOTE) or hasattr(x, _UNPADDED)


def note_of(maps: Any) -> Scaled | None:
    """The note on feature maps, if there is one."""
    found: Scaled | None = getattr(maps, _NOTE, None)
    return found
