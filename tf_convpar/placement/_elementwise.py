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
    """Traces `fn` on the first shard and looks at the ops it makes."""
    graph = tf.__internal__.FuncGraph("elementwise")
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
    """Learning rates, step counts: whatever the op does, it mixes nothing."""
    return all(t.shape.rank == 0 for t in (*op.inputs, *op.outputs)) and all(
        t.dtype != tf.resource for t in op.inputs
    )


def _keeps_shape(op: tf.Operation, shape: tf.TensorShape) -> bool:
    return all(
        t.dtype == tf.resource or t.shape.rank == 0 or t.shape == shape
        for t in op.outputs
    )


def pick(arg: Any, index: int) -> Any:
    """What shard `index` sees of an argument of an update."""
    return arg.shards[index] if isinstance(arg, ShardedTensor) else arg
