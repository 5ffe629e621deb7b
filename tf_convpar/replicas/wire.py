"""How vectors look on the wire: as they are, or in fewer bits.

Whole numbers of few bits are of blocks of values, each block with a scale of
its own, so that one large value takes no precision from all others. What
rounding has lost is for whoever sends to remember and to add to the next
vector (error feedback: Karimireddy et al., 2019, arXiv 1901.09847), so that
nothing is lost over time.
"""

from __future__ import annotations

import abc
from typing import Any
from typing import Protocol

import tensorflow as tf

from tf_convpar.ops import decode_blocks
from tf_convpar.ops import encode_blocks
from tf_convpar.placement import check_wire
from tf_convpar.placement import wire_bytes


class Left(Protocol):
    """Where it is kept what rounding has left: a variable, or part of one."""

    def read_value(self) -> tf.Tensor:
        """The values, as they are now."""

    def assign(self, values: tf.Tensor) -> Any:
        """Replaces the values."""


class Wire(abc.ABC):
    """A form of float32 vectors.

    ```python
    wire = wire_of("int8")
    wire.decode(wire.encode(vector), len(vector))  # close to the vector
    ```

    Args:
        name: Its name.

    Attributes:
        is_exact: Whether what is decoded is what was encoded.
    """

    is_exact = False

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(
        self,
        vector: tf.Tensor,
        left: Left | None = None,
        *,
        less: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The vector as one message.

        Args:
            vector: The vector.
            left: What rounding has left of the one before, which is added to
                it, and is what rounding leaves then; None to forget that.
            less: A vector of its dtype that is taken from it first; None for
                nothing.
        """
        if less is not None and vector.dtype != tf.float32:
            vector, less = vector - less, None
        return self._encode(tf.cast(vector, tf.float32), left, less)

    def decode(
        self,
        message: tf.Tensor,
        size: int,
        *,
        added_to: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The vector of a message.

        Args:
            message: What `encode` has made.
            size: Values of the vector.
            added_to: A vector that it is added to; None for nothing.

        Returns:
            The sum, in the dtype of what it is added to; float32 of nothing.
        """
        if added_to is None or added_to.dtype == tf.float32:
            return self._decode(message, size, added_to)
        decoded = self._decode(message, size, None)
        return added_to + tf.cast(decoded, added_to.dtype)

    @abc.abstractmethod
    def _encode(
        self,
        vector: tf.Tensor,
        left: Left | None,
        less: tf.Tensor | None,
    ) -> tf.Tensor:
        """As `encode`, of float32."""

    @abc.abstractmethod
    def _decode(
        self, message: tf.Tensor, size: int, added_to: tf.Tensor | None
    ) -> tf.Tensor:
        """As `decode`, to float32."""

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

    def _encode(
        self,
        vector: tf.Tensor,
        left: Left | None,
        less: tf.Tensor | None,
    ) -> tf.Tensor:
        """Rounded to the nearest."""
        if less is not None:
            vector = vector - less
        if left is None:
            return tf.cast(vector, self._dtype)
        vector += left.read_value()
        message = tf.cast(vector, self._dtype)
        left.assign(vector - tf.cast(message, tf.float32))
        return message

    def _decode(
        self, message: tf.Tensor, size: int, added_to: tf.Tensor | None
    ) -> tf.Tensor:
        """Exactly what was sent."""
        vector = tf.cast(message, tf.float32)
        return vector if added_to is None else added_to + vector


class Blocks(Wire):
    """Whole numbers of 8 or 4 bits, a scale for each block of 256.

    Args:
        bits: 8 or 4.
    """

    def __init__(self, bits: int) -> None:
        super().__init__(f"int{bits}")
        self._bits = bits

    def _encode(
        self,
        vector: tf.Tensor,
        left: Left | None,
        less: tf.Tensor | None,
    ) -> tf.Tensor:
        """Bytes."""
        before = None if left is None else left.read_value()
        message, rest = encode_blocks(vector, self._bits, before, less=less)
        if left is not None:
            left.assign(rest)
        return message

    def _decode(
        self, message: tf.Tensor, size: int, added_to: tf.Tensor | None
    ) -> tf.Tensor:
        """Each number times its block's scale."""
        return decode_blocks(message, size, self._bits, added_to)


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
