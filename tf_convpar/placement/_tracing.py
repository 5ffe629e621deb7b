"""What `tf.function` takes a variable in shards for: for itself."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf


class Itself(tf.types.experimental.TraceType):
    """The type of an argument that no other object can stand in for.

    A function is traced for each of its own. It would else be given an array of
    what is in the variable, and could assign nothing.

    Args:
        value: The argument.
        now: What the argument stands for at the moment. What is traced for one
            shard does not run for another.
    """

    def __init__(self, value: Any, now: Any) -> None:
        self._value = weakref.ref(value)
        self._key = id(value), now

    def is_subtype_of(self, other: Any) -> bool:
        """Whether a function that was traced for the other serves this one."""
        return self == other

    def most_specific_common_supertype(self, others: Any) -> Itself | None:
        """Itself, or nothing."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The argument."""
        return self._value()

    def cast(self, value: Any, cast_context: Any) -> Any:
        """The argument."""
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Itself):
            return NotImplemented
        alive = self._value() is not None
        return alive and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)
