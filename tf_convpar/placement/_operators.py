"""Python's operators for classes whose objects have the value of a tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_BINARY = "add sub mul truediv floordiv mod pow and or xor".split()
_COMPARING = "lt le gt ge eq ne".split()
_UNARY = "neg abs invert".split()
# Operators that mix elements, or ask for one value.
_ON_MERGED = {
    "getitem": operator.getitem,
    "index": operator.index,
    "matmul": operator.matmul,
    **{fn.__name__: fn for fn in (len, iter, bool, int, float, complex, round)},
}


def on_merged(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies an operator to merged tensors."""
    values = (
        tf.convert_to_tensor(x) if hasattr(x, "__tf_tensor__") else x
        for x in operands
    )
    return fn(*values)


def forward_operators(
    cls: Any,
    elementwise: Callable[..., Any] = on_merged,
    excluded: tuple[str, ...] = (),
) -> None:
    """Gives a class the operators that Python has for tensors.

    ```python
    forward_operators(ShardedVariable)  # whose objects convert to tensors
    ```

    Args:
        cls: The class.
        elementwise: Function that applies an operator that treats elements
            alone. It is given a function of tensors, and its operands.
        excluded: Operators that it does not get: no variable has a length.
    """
    for name in _BINARY + _COMPARING:
        fn = getattr(operator, f"__{name}__")
        setattr(cls, f"__{name}__", lambda x, y, fn=fn: elementwise(fn, x, y))
        if name in _BINARY:
            setattr(
                cls, f"__r{name}__", lambda x, y, fn=fn: elementwise(fn, y, x)
            )
    for name in _UNARY:
        fn = getattr(operator, f"__{name}__")
        setattr(cls, f"__{name}__", lambda x, fn=fn: elementwise(fn, x))
    for name in sorted(_ON_MERGED.keys() - set(excluded)):
        fn = _ON_MERGED[name]
        setattr(cls, f"__{name}__", lambda *args, fn=fn: on_merged(fn, *args))
    cls.__rmatmul__ = lambda x, y: on_merged(operator.matmul, y, x)
    # Else numpy would take what stands on its right for an array.
    cls.__array_priority__ = tf.Tensor.__array_priority__
