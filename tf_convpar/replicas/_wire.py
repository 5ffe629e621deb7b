"""How vectors look on the wire: as they are, or in fewer bits.

Whole numbers of few bits are of blocks of values, each block with a scale of
its own, so that one large value takes no precision from all others. What
rounding has lost is for whoever sends to remember and to add to the next
vector (error feedback: Karimireddy et al., 2019, arXiv 1901.09847), so that
nothing is lost over time.
"""

from __future__ import annotations

import abc

import tensorflow as tf

from tf_convpar.placement import BLOCK
from tf_convpar.placement import SCALE_BYTES
from tf_convpar.placement import check_wire
from tf_convpar.placement import wire_bytes


class Wire(abc.ABC):
    """A form of float32 vectors.

    ```python
    wire = wire_of("int8")
    wire.decode(wire.encode(vector))  # close to the vector, zeros behind it
    ```

    Args:
        name: Its name.

    Attributes:
        is_exact: Whether what is decoded is what was encoded.
    """

    is_exact = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """The vector as one message."""

    @abc.abstractmethod
    def decode(self, message: tf.Tensor) -> tf.Tensor:
        """The float32 vector of a message, filled up to whole blocks."""

    def nbytes(self, values: int) -> int:
        """Bytes of a message of so many values."""
        return wire_bytes(self.name, values)


class Cast(Wire):
    """Each value in a floating-point dtype.

    Args:
        dtype: That of the wire.
    """

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self._dtype = tf.as_dtype(dtype)
        self.is_exact = self._dtype == tf.float32

    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """Rounded to the nearest."""
        return tf.cast(vector, self._dtype)

    def decode(self, message: tf.Tensor) -> tf.Tensor:
        """Exactly what was sent."""
        return tf.cast(message, tf.float32)


class Blocks(Wire):
    """Whole numbers of 8 or 4 bits, a scale for each block of 256.

    `q = round(x / s)` with `s = max |x| / m` of a block, and `m` 127 or 7. A
    message is the numbers and then the scales, as bytes.

    Args:
        bits: 8 or 4.
    """

    def __init__(self, bits: int) -> None:
        super().__init__(f"int{bits}")
        self._bits = bits
        self._most = float(2 ** (bits - 1) - 1)

    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """Bytes."""
        if vector.shape[0] % BLOCK:
            vector = tf.pad(vector, [[0, -vector.shape[0] % BLOCK]])
        blocks = tf.reshape(vector, [-1, BLOCK])
        scales = tf.reduce_max(tf.abs(blocks), axis=1) / self._most
        scaled = tf.math.divide_no_nan(blocks, scales[:, None])
        # Negative numbers are the upper half of the unsigned ones.
        numbers = tf.cast(tf.round(scaled), tf.int32) % 2**self._bits
        if self._bits == 4:
            numbers = numbers[:, 0::2] + 16 * numbers[:, 1::2]
        return tf.concat(
            [
                tf.reshape(tf.cast(numbers, tf.uint8), [-1]),
                tf.reshape(tf.bitcast(scales, tf.uint8), [-1]),
            ],
            axis=0,
        )

    def decode(self, message: tf.Tensor) -> tf.Tensor:
        """Each number times its block's scale."""
        width = BLOCK * self._bits // 8
        blocks = tf.size(message) // (width + SCALE_BYTES)
        numbers = tf.reshape(message[: blocks * width], [blocks, width])
        scales = tf.bitcast(
            tf.reshape(message[blocks * width :], [blocks, SCALE_BYTES]),
            tf.float32,
        )
        numbers = tf.cast(numbers, tf.int32)
        if self._bits == 4:
            pairs = tf.stack([numbers % 16, numbers // 16], axis=2)
            numbers = tf.reshape(pairs, [blocks, BLOCK])
        half = 2 ** (self._bits - 1)
        numbers = (numbers + half) % (2 * half) - half
        values = tf.cast(numbers, tf.float32) * scales[:, None]
        return tf.reshape(values, [-1])


_WIRES: dict[str, Wire] = {
    wire.name: wire
    for wire in (Cast("float32"), Cast("bfloat16"), Blocks(8), Blocks(4))
}


def wire_of(name: str) -> Wire:
    """The form of that name.

    Raises:
        ValueError: There is none.
    """
    check_wire(name)
    return _WIRES[name]
