"""Vectors in few bits: blocks of whole numbers, each block with a scale.

`q = round(x / s)` with `s = max |x| / m` of a block of 256 values, and `m` 127
of 8 bits or 7 of 4. A message is all numbers, then all scales, as bytes. By
TensorFlow's own ops that goes over the values a dozen times, here once.
"""

from __future__ import annotations

import tensorflow as tf

from . import _library
from ._kernels import native_on

# Values that have one scale: four bytes of 256 or of 128 bytes.
BLOCK = 256
SCALE_BYTES = 4


def encode_blocks(
    values: tf.Tensor,
    bits: int,
    left: tf.Tensor | None = None,
    *,
    less: tf.Tensor | None = None,
    native: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A vector as a message of few bits.

    ```python
    message, left = encode_blocks(vector, bits=8, left=left)
    ```

    Args:
        values: A vector of float32.
        bits: 8 or 4, of each value.
        left: What rounding has left of an earlier vector, which is added; None
            for nothing, which then is not returned.
        less: A vector that is taken from `values`; None for nothing.
        native: True for the compiled op, which runs on a CPU; False for
            TensorFlow's own; None for the compiled one if there is one where
            the values are.

    Returns:
        The message, whose blocks are filled up with zeros, and what rounding
        has left. Where a value is no finite number, none of its block is.
    """
    values = tf.convert_to_tensor(values)
    if _is_native("EncodeBlocks", values, native):
        message, rest = _library.module().tf_convpar_encode_blocks(
            values=values,
            less=tf.zeros([0]) if less is None else less,
            left=tf.zeros([0]) if left is None else left,
            bits=bits,
        )
        return message, None if left is None else rest
    if less is not None:
        values = values - less
    if left is not None:
        values = values + left
    message = _encoded(values, bits)
    if left is None:
        return message, None
    return message, values - _decoded(message, bits)[: values.shape[0]]


def decode_blocks(
    message: tf.Tensor,
    size: int,
    bits: int,
    added_to: tf.Tensor | None = None,
    *,
    native: bool | None = None,
) -> tf.Tensor:
    """The vector of a message.

    ```python
    vector = decode_blocks(message, size=1000, bits=8)
    ```

    Args:
        message: As `encode_blocks` makes it.
        size: How many values it has.
        bits: 8 or 4, of each value.
        added_to: A vector that the message's is added to; None for nothing.
        native: As for `encode_blocks`.
    """
    message = tf.convert_to_tensor(message)
    if _is_native("DecodeBlocks", message, native):
        vector: tf.Tensor = _library.module().tf_convpar_decode_blocks(
            message=message,
            added=tf.zeros([0]) if added_to is None else added_to,
            size=size,
            bits=bits,
        )
        return vector
    vector = _decoded(message, bits)[:size]
    return vector if added_to is None else added_to + vector


def _encoded(values: tf.Tensor, bits: int) -> tf.Tensor:
    blocks = tf.reshape(
        tf.pad(values, [[0, -values.shape[0] % BLOCK]]), [-1, BLOCK]
    )
    most = float(2 ** (bits - 1) - 1)
    scales = tf.reduce_max(tf.abs(blocks), axis=1) / most
    # Of what is infinite as well: none of the block is a number then.
    scales += tf.reduce_sum(blocks * 0.0, axis=1)
    scaled = tf.math.divide_no_nan(blocks, scales[:, None])
    scaled = tf.where(tf.math.is_finite(scaled), scaled, 0.0)
    # Negative numbers are the upper half of the unsigned ones.
    numbers = tf.cast(tf.round(scaled), tf.int32) % 2**bits
    if bits == 4:
        numbers = numbers[:, 0::2] + 16 * numbers[:, 1::2]
    return tf.concat(
        [
            tf.reshape(tf.cast(numbers, tf.uint8), [-1]),
            tf.reshape(tf.bitcast(scales, tf.uint8), [-1]),
        ],
        axis=0,
    )


def _decoded(message: tf.Tensor, bits: int) -> tf.Tensor:
    width = BLOCK * bits // 8
    blocks = tf.size(message) // (width + SCALE_BYTES)
    numbers = tf.reshape(message[: blocks * width], [blocks, width])
    scales = tf.bitcast(
        tf.reshape(message[blocks * width :], [blocks, SCALE_BYTES]),
        tf.float32,
    )
    numbers = tf.cast(numbers, tf.int32)
    if bits == 4:
        pairs = tf.stack([numbers % 16, numbers // 16], axis=2)
        numbers = tf.reshape(pairs, [blocks, BLOCK])
    half = 2 ** (bits - 1)
    numbers = (numbers + half) % (2 * half) - half
    values = tf.cast(numbers, tf.float32) * scales[:, None]
    return tf.reshape(values, [-1])


def _is_native(op: str, x: tf.Tensor, native: bool | None) -> bool:
    if native is None:
        native = native_on(op, x.device or "")
    return _library.load() if native is None else native
