"""Cuts several tensors into flat pieces, in which they travel together.

To cut, flatten and join each by itself takes TensorFlow five ops for each
tensor, and as many copies of its numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from . import _library
from ._devices import same_device

# Dtypes of the compiled op.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


@dataclasses.dataclass(frozen=True)
class Cuts:
    """How tensors are cut, each along an axis, between holders.

    ```python
    # The second of two holders has three of four columns, and all of a bias.
    Cuts(shapes=[(2, 4), (4,)], axes=[1, 0], widths=[(1, 3), (0, 4)])
    ```

    Args:
        shapes: Shapes of the tensors. A scalar is as a vector of one number.
        axes: The axis along which each is cut, from 0.
        widths: For each tensor how much of its axis each holder has. They sum
            to the size of the axis.
    """

    shapes: Sequence[Sequence[int]]
    axes: Sequence[int]
    widths: Sequence[Sequence[int]]

    @classmethod
    def of_one(cls, shapes: Sequence[Sequence[int]]) -> Cuts:
        """Tensors of which one holder has all."""
        sizes = [(shape[0] if len(shape) else 1,) for shape in shapes]
        return cls(shapes, [0] * len(shapes), sizes)

    @property
    def holders(self) -> int:
        """Count of holders."""
        return len(self.widths[0])


def to_pieces(
    tensors: Sequence[tf.Tensor],
    cuts: Cuts,
    count: int,
    *,
    native: bool | None = None,
) -> list[list[tf.Tensor]]:
    """Cuts tensors between holders, and each holder's parts into flat pieces.

    ```python
    pieces = to_pieces([kernel, bias], cuts, 2)
    pieces[1][0]  # the first of two pieces of the second holder's parts
    kernel, bias = from_pieces(pieces, cuts)
    ```

    Args:
        tensors: Tensors of one dtype, of floats.
        cuts: Their shapes, and how they are cut.
        count: Pieces of each holder, all of about one size.
        native: True for the compiled op, which runs on CPUs; False for
            TensorFlow's own; None for the compiled one if `load()` finds it.

    Returns:
        For each holder its pieces, each `(numbers,)`.
    """
    if _is_native(native, tensors[0]):
        flat_pieces = _library.module().tf_convpar_to_pieces(
            tensors=list(tensors),
            N=cuts.holders * count,
            count=count,
            **_attributes(cuts),
        )
        return _batched(flat_pieces, count)
    rows: list[list[tf.Tensor]] = [[] for _ in range(cuts.holders)]
    for tensor, axis, widths in zip(
        tensors, cuts.axes, cuts.widths, strict=True
    ):
        at_least_vector = (
            tf.reshape(tensor, [-1]) if tensor.shape.rank == 0 else tensor
        )
        parts = tf.split(at_least_vector, list(widths), axis)
        for row, part in zip(rows, parts, strict=True):
            row.append(tf.reshape(part, [-1]))
    return [_in_pieces(tf.concat(row, 0), count) for row in rows]


def from_pieces(
    pieces: Sequence[Sequence[tf.Tensor]],
    cuts: Cuts,
    *,
    native: bool | None = None,
) -> list[tf.Tensor]:
    """Joins the tensors that `to_pieces` has cut.

    Args:
        pieces: For each holder its pieces, of any sizes.
        cuts: The shapes of the tensors, and how they were cut.
        native: As for `to_pieces`.

    Returns:
        The tensors.
    """
    if _is_native(native, pieces[0][0]):
        return list(
            _library.module().tf_convpar_from_pieces(
                pieces=[
                    piece for holder_pieces in pieces for piece in holder_pieces
                ],
                K=len(cuts.shapes),
                count=len(pieces[0]),
                **_attributes(cuts),
            )
        )
    parts: list[list[tf.Tensor]] = []
    for h, holder_pieces in enumerate(pieces):
        shapes = []
        for shape, axis, widths in zip(
            cuts.shapes, cuts.axes, cuts.widths, strict=True
        ):
            shapes.append([*shape] or [1])
            shapes[-1][axis] = widths[h]
        flat = tf.concat(holder_pieces, 0)
        cut_numbers = tf.split(flat, [math.prod(shape) for shape in shapes])
        parts.append(list(map(tf.reshape, cut_numbers, shapes)))
    return [
        tf.reshape(tf.concat(tensor_parts, axis), shape)
        for tensor_parts, axis, shape in zip(
            zip(*parts, strict=True), cuts.axes, cuts.shapes, strict=True
        )
    ]


def _in_pieces(row: tf.Tensor, count: int) -> list[tf.Tensor]:
    ends = [row.shape[0] * i // count for i in range(count + 1)]
    return list(tf.split(row, [b - a for a, b in itertools.pairwise(ends)]))


def _attributes(cuts: Cuts) -> dict[str, Any]:
    return {
        "shapes": [list(shape) for shape in cuts.shapes],
        "axes": list(cuts.axes),
        "widths": [width for widths in cuts.widths for width in widths],
    }


def _is_native(native: bool | None, tensor: tf.Tensor) -> bool:
    wanted = _library.load() if native is None else native
    return tensor.dtype in _DTYPES and wanted


def _cuts_of(op: Any) -> Cuts:
    shapes = [tf.TensorShape(shape) for shape in op.get_attr("shapes")]
    widths = op.get_attr("widths")
    return Cuts(
        shapes,
        op.get_attr("axes"),
        _batched(widths, len(widths) // len(shapes)),
    )


def _batched(items: Sequence[Any], count: int) -> list[list[Any]]:
    return [list(items[i : i + count]) for i in range(0, len(items), count)]


@tf.RegisterGradient("TfConvpar>ToPieces")
def _to_pieces_gradient(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor]:
    pieces = _batched(upstream, op.get_attr("count"))
    with same_device(op.outputs[0].device):
        return from_pieces(pieces, _cuts_of(op), native=True)


@tf.RegisterGradient("TfConvpar>FromPieces")
def _from_pieces_gradient(op: Any, *upstream: tf.Tensor) -> list[tf.Tensor]:
    with same_device(op.outputs[0].device):
        pieces = to_pieces(
            upstream, _cuts_of(op), op.get_attr("count"), native=True
        )
        return [piece for holder_pieces in pieces for piece in holder_pieces]
