"""Trace type of sharded variables as arguments of a `tf.function`."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf


class IdentityTraceType(tf.types.experimental.TraceType):
    """The trace type of an argument that no other object can stand in for.

    A function is traced for each such object. Else it would be given an array
    of the variable's value, and could assign nothing.

    Args:
        value: The argument.
        stands_for: What the argument stands for at the moment. A function that
            was traced for one shard does not run for another.
    """

    def __init__(self, value: Any, stands_for: Any) -> None:
        self._value = weakref.ref(value)
        self._key = id(value), stands_for

    def is_subtype_of(self, other: Any) -> bool:
        """Whether a function that was traced for the other serves this one."""
        return self == other

    def most_specific_common_supertype(
        self, others: Any
    ) -> IdentityTraceType | None:
        """This type, if all others are equal to it; else None."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The argument."""
        return self._value()

    def cast(self, value: Any, cast_context: Any) -> Any:
        """The argument."""
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdentityTraceType):
            return NotImplemented
        alive = self._value() is not None
        return alive and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)
