"""Probes whether an optimizer's update treats every element alone.

SGD, Adam and most optimizers do: their update of a kernel may run shard by
shard, each on its own device, and gives the same numbers. Lamb (norms), Muon
(matrix products) and Adafactor (row and column means) do not, nor does one that
counts its steps, as it would count each shard: they get the merged kernel. The
answer is read off the ops that the update makes, so that optimizers of the
user's own are judged as well.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_convpar._compat.tensorflow import FuncGraph
from tf_convpar.placement._layout import Layout
from tf_convpar.placement._sharded_tensor import ShardedTensor
from tf_convpar.placement._sharded_variable import ShardedVariable
from tf_convpar.placement._sharded_variable import standing_for

# No assignment is among them: those of sharded variables make no op here, and
# other variables are to be assigned once.
_ELEMENTWISE = frozenset(
    "Abs Add AddN AddV2 BroadcastTo Cast Const Div DivNoNan Equal Exp Fill "
    "Greater GreaterEqual Identity IsFinite IsInf IsNan Less LessEqual Log "
    "LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Neg NoOp "
    "NotEqual OnesLike Placeholder Pow ReadVariableOp RealDiv Reciprocal "
    "Rsqrt Select SelectV2 Sigmoid Sign Sqrt Square SquaredDifference Sub "
    "Tanh Xdivy Xlogy ZerosLike".split()
)


def is_elementwise(
    fn: Callable[..., Any], variable: ShardedVariable, args: Sequence[Any]
) -> bool:
    """Whether `fn` treats every element of a variable alone.

    The function is traced on a value of the first shard's shape and on one of
    the merged shape, and its ops are looked at: they are the same ones, with
    the same numbers.

    Args:
        fn: An update, called with the variable and `args`.
        variable: The sharded variable to update.
        args: Further arguments of `fn`.
    """
    layout, merged = variable.layout, variable.merged_shape
    if len(layout.devices) == 1:
        return True
    of_shard = _PlaceholderValues(
        layout, layout.shard_shape(merged, 0)[layout.axis]
    )
    shard_ops = of_shard.ops_of(fn, variable, args)
    if shard_ops is None:
        return False
    return shard_ops == _PlaceholderValues(layout, layout.total).ops_of(
        fn, variable, args
    )


class _PlaceholderValues:
    """Placeholders of some width that stand for sharded variables in a trace.

    Args:
        layout: Layout of the variables that may be read and assigned.
        width: Length of the axis that is cut.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        self._layout = layout
        self._width = width
        self._layouts_agree = True

    def ops_of(
        self, fn: Callable[..., Any], variable: Any, args: Sequence[Any]
    ) -> list[Any] | None:
        """The ops of an update; None if it is not elementwise."""
        graph = FuncGraph("elementwise")
        try:
            with graph.as_default(), standing_for(self):
                fn(variable, *map(self._argument, args))
                shape = self.shape(variable)
        # Whatever it is: the update needs the merged shape, or is eager. If it
        # is an error of its own, it is raised when the update is run.
        except Exception:
            return None
        ops = [_signature(op, shape) for op in graph.get_operations()]
        return ops if self._layouts_agree and None not in ops else None

    def _argument(self, arg: Any) -> Any:
        if not isinstance(arg, ShardedTensor):
            return arg
        return self._value(arg.dtype, arg.shape, arg.layout)

    def _value(
        self, dtype: tf.DType, merged: tf.TensorShape, layout: Any
    ) -> tf.Tensor:
        return tf.compat.v1.placeholder(dtype, self._cut(merged, layout))

    def _cut(self, merged: tf.TensorShape, layout: Any) -> tf.TensorShape:
        self._layouts_agree &= layout.matches(self._layout)
        dims = merged.as_list()
        dims[layout.axis] = self._width
        return tf.TensorShape(dims)

    def shape(self, variable: ShardedVariable) -> tf.TensorShape:
        """The shape that a variable has."""
        return self._cut(variable.merged_shape, variable.layout)

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        """The value that a variable has."""
        merged, layout = variable.merged_shape, variable.layout
        return self._value(variable.dtype, merged, layout)

    def write(self, variable: ShardedVariable, method: str, value: Any) -> None:
        """Checks the shape that is assigned."""
        value = tf.convert_to_tensor(value, variable.dtype)
        self._layouts_agree &= value.shape == self.shape(variable)


def _signature(op: tf.Operation, shape: tf.TensorShape) -> Any:
    """An elementwise op's type, inputs and number; None for any other op.

    It is the same whatever the shape of the operands.
    """
    elementwise = op.type in _ELEMENTWISE
    if not elementwise and (op.op_def.is_stateful or not _all_scalar(op)):
        return None
    if not all(_fits(t, shape) for t in op.outputs):
        return None
    number = None
    if op.type == "Const" and op.outputs[0].dtype != tf.string:
        value = tf.get_static_value(op.outputs[0])
        if value is None or value.size and (value != value.flat[0]).any():
            return None  # Elements have different numbers.
        number = np.asarray(value).flat[0].tobytes()
    return op.type, [x.name for x in op.inputs], number


def _all_scalar(op: tf.Operation) -> bool:
    """Whether an op has scalars only, such as learning rates or step counts.

    Whatever it computes, it mixes no elements of the variable.
    """
    return all(t.shape.rank == 0 for t in (*op.inputs, *op.outputs))


def _fits(t: tf.Tensor, shape: tf.TensorShape) -> bool:
    return t.dtype == tf.resource or t.shape.rank == 0 or t.shape == shape


def pick(arg: Any, index: int) -> Any:
    """Shard `index` of an update's argument, or all of one without shards."""
    return arg.shards[index] if isinstance(arg, ShardedTensor) else arg
