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

# Values that have one scale: four bytes of 256 or of 128 bytes.
BLOCK = 256
_SCALE_BYTES = 4


class Wire(abc.ABC):
    """A form of float32 vectors, whose lengths are multiples of `BLOCK`.

    ```python
    wire = wire_of("int8")
    wire.decode(wire.encode(vector))  # close to the vector
    ```

    Attributes:
        is_exact: Whether what is decoded is what was encoded.
    """

    is_exact = False

    @abc.abstractmethod
    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """The vector as one message."""

    @abc.abstractmethod
    def decode(self, message: tf.Tensor) -> tf.Tensor:
        """The float32 vector of a message."""

    @abc.abstractmethod
    def nbytes(self, values: int) -> int:
        """Bytes of a message of so many values."""


class Cast(Wire):
    """Each value in a floating-point dtype.

    Args:
        dtype: That of the wire.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = tf.as_dtype(dtype)
        self.is_exact = self._dtype == tf.float32

    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """Rounded to the nearest."""
        return tf.cast(vector, self._dtype)

    def decode(self, message: tf.Tensor) -> tf.Tensor:
        """Exactly what was sent."""
        return tf.cast(message, tf.float32)

    def nbytes(self, values: int) -> int:
        """As many as the dtype has."""
        return int(values * self._dtype.size)


class Blocks(Wire):
    """Whole numbers of 8 or 4 bits, a scale for each block of 256.

    `q = round(x / s)` with `s = max |x| / m` of a block, and `m` 127 or 7. A
    message is the numbers and then the scales, as bytes.

    Args:
        bits: 8 or 4.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = float(2 ** (bits - 1) - 1)

    def encode(self, vector: tf.Tensor) -> tf.Tensor:
        """Bytes."""
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
        blocks = tf.size(message) // (width + _SCALE_BYTES)
        numbers = tf.reshape(message[: blocks * width], [blocks, width])
        scales = tf.bitcast(
            tf.reshape(message[blocks * width :], [blocks, _SCALE_BYTES]),
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

    def nbytes(self, values: int) -> int:
        """Half a byte or one for each value, four for each block."""
        return values * self._bits // 8 + values // BLOCK * _SCALE_BYTES


_WIRES: dict[str, Wire] = {
    "float32": Cast("float32"),
    "bfloat16": Cast("bfloat16"),
    "int8": Blocks(8),
    "int4": Blocks(4),
}


def wire_of(name: str) -> Wire:
    """The form of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in _WIRES:
        names = ", ".join(f'"{known}"' for known in _WIRES)
        raise ValueError(f"Expected wire to be {names}. Received: {name!r}.")
    return _WIRES[name]
