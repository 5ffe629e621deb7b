"""Whether an update treats every element alone.

SGD, Adam and most optimizers do: their update of a kernel may run shard by
shard, each on its own device, and gives the same numbers. Lamb (norms), Muon
(matrix products) and Adafactor (row and column means) do not, and get the
merged kernel. The answer is read off the ops that the update makes, so that
optimizers of the user's own are judged as well.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar._compat.tensorflow import FuncGraph
from tf_convpar.placement._sharded_tensor import ShardedTensor
from tf_convpar.placement._sharded_variable import ShardedVariable
from tf_convpar.placement._sharded_variable import shard_scope

_ELEMENTWISE = frozenset(
    "Abs Add AddN AddV2 AssignAddVariableOp AssignSubVariableOp "
    "AssignVariableOp BroadcastTo Cast Const Div DivNoNan Equal Exp Fill "
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

    The function is traced on the first shard, and its ops are looked at.

    Args:
        fn: An update, called with the variable and `args`.
        variable: The sharded variable to update.
        args: Further arguments of `fn`; of a sharded tensor the first shard is
            passed.
    """
    graph = FuncGraph("elementwise")
    shape = variable.shards[0].shape
    with graph.as_default(), shard_scope(0):
        try:
            fn(variable, *(pick(arg, 0) for arg in args))
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            return False  # It needs the merged shape.
    return all(
        _all_scalar(op) or (op.type in _ELEMENTWISE and _keeps_shape(op, shape))
        for op in graph.get_operations()
    )


def _all_scalar(op: tf.Operation) -> bool:
    """Whether an op has scalars only, such as learning rates or step counts.

    Whatever it computes, it mixes no elements of the variable.
    """
    return all(t.shape.rank == 0 for t in (*op.inputs, *op.outputs)) and all(
        t.dtype != tf.resource for t in op.inputs
    )


def _keeps_shape(op: tf.Operation, shape: tf.TensorShape) -> bool:
    return all(
        t.dtype == tf.resource or t.shape.rank == 0 or t.shape == shape
        for t in op.outputs
    )


def pick(arg: Any, index: int) -> Any:
    """Shard `index` of an update's argument; what has no shards as it is."""
    return arg.shards[index] if isinstance(arg, ShardedTensor) else arg
