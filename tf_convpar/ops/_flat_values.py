"""Packs of many tensors in one, and comparing variables with a pack."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from . import _library


def pack(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Packs tensors into one scalar, so that a function has one argument.

    ```python
    packed = pack([kernel, bias])
    kernel, bias = unpack(packed, [kernel.dtype, bias.dtype], [(3, 3), (3,)])
    ```

    Nothing is copied. The compiled ops are needed for it.

    Args:
        values: Tensors of any types and shapes on a CPU; at least one.

    Returns:
        A scalar of type `tf.variant`.
    """
    packed: tf.Tensor = _library.module().tf_convpar_pack(values=list(values))
    return packed


def unpack(
    packed: tf.Tensor,
    types: Sequence[tf.DType],
    shapes: Sequence[tf.TensorShape],
) -> list[tf.Tensor]:
    """The tensors of a pack.

    Args:
        packed: A scalar from `pack`.
        types: Types of the tensors.
        shapes: Their shapes, as far as they are known.

    Returns:
        The tensors.
    """
    return list(
        _library.module().tf_convpar_unpack(
            packed=packed, types=list(types), shapes=list(shapes)
        )
    )


def unchanged(variables: tf.Tensor, packed: tf.Tensor) -> bool:
    """Whether variables still have the values that were read of them.

    ```python
    handles = tf.stack([variable.handle for variable in variables])
    values = pack([variable.read_value() for variable in variables])
    unchanged(handles, values)  # True
    ```

    Values are compared by where they are in memory. TensorFlow writes to a
    variable in place only where nobody else has its value, and a pack has it.

    Args:
        variables: Handles of variables, `(n,)`, of type `tf.resource`.
        packed: A scalar from `pack`, of their values.

    Returns:
        False also where a variable is one that TensorFlow copies for each
        reader, as it does after sparse updates.
    """
    same_memory = _library.module().tf_convpar_unchanged(
        variables=variables, packed=packed
    )
    return bool(same_memory)
