"""Notes of how images were made, for convolutions of single pixels.

In inference a concatenation, a normalization, its activation or a factor for
each channel right before such a convolution needs no pass of its own: the
convolution does it to the pixels that it is about to multiply. The tensor that
nobody else uses is then never computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops

# Attributes of a tensor: the tensors of which it is joined; how it is made.
_PARTS, _JOINED = "_convpar_parts", "_convpar_joined"


def join(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Joins feature maps along their channels, and notes the parts.

    A part that is joined itself is replaced by its own parts, so that it need
    not be computed.
    """
    maps = tf.concat(_parts_of(parts), -1)
    setattr(maps, _PARTS, _parts_of(parts))
    return maps


def leave_joined(maps: tf.Tensor, source: tf.Tensor, *change: Any) -> None:
    """Notes on images, in a graph, of which others they were made, and how.

    Args:
        maps: The new images, `(batch, height, width, channels)`.
        source: The images that they were made of, of the same shape.
        change: How, as the other arguments of `ops.JoinedImages` say.
    """
    if not tf.executing_eagerly() and maps.shape.rank == 4:
        setattr(maps, _JOINED, ops.JoinedImages(_parts_of([source]), *change))


def is_joined(x: Any) -> bool:
    """Whether a convolution may read the images of which this one was made."""
    return hasattr(x, _PARTS) or hasattr(x, _JOINED)


def joined_of(images: tf.Tensor) -> ops.JoinedImages | None:
    """Parts and scaling of which images were made, if a note says so."""
    note: ops.JoinedImages | None = getattr(images, _JOINED, None)
    return note


def _parts_of(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [
        part for tensor in tensors for part in getattr(tensor, _PARTS, [tensor])
    ]
