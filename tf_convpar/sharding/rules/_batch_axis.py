"""Follows the samples' axis through the graph of a layer of the user's.

A layer treats each sample alone if each op from its inputs to its outputs does.
An op that is not known here may do anything: the layer is then not said to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Ops of one tensor, number by number.
_ELEMENTWISE = frozenset(
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Cos Cosh Elu Erf Erfc Exp "
    "Expm1 Floor Identity Inv IsFinite IsInf IsNan LeakyRelu Log Log1p "
    "LogicalNot Neg OnesLike PreventGradient Reciprocal Relu Relu6 Rint Round "
    "Rsqrt Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square "
    "StopGradient Tan Tanh ZerosLike".split()
)
# Ops of several tensors, number by number, with smaller ones broadcast.
_BROADCAST = frozenset(
    "Add AddN AddV2 Atan2 BiasAdd Div DivNoNan Equal FloorDiv FloorMod Greater "
    "GreaterEqual Less LessEqual LogicalAnd LogicalOr Maximum Minimum Mod Mul "
    "MulNoNan NotEqual Pow RealDiv SelectV2 SquaredDifference Sub Xdivy "
    "Xlogy".split()
)
# Ops of images and, at most, a kernel.
_OF_IMAGES = frozenset(
    "AvgPool AvgPool3D Conv2D Conv3D DepthToSpace DepthwiseConv2dNative "
    "MaxPool MaxPool3D ResizeBicubic ResizeBilinear ResizeNearestNeighbor "
    "SpaceToDepth".split()
)
_REDUCTIONS = frozenset(
    "All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum".split()
)


# Stands for the number of samples in sizes; no other size has it as a factor.
_SAMPLES = 2**61 - 1
# Stateful ops that give the same on each device.
_READS = frozenset(("ReadVariableOp", "VarHandleOp"))


def treats_each_sample_alone(
    graph: tf.Graph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> bool:
    """Whether each sample of a graph's outputs is made of that of its inputs.

    ```python
    traced = tf.function(tf.nn.relu).get_concrete_function(
        tf.TensorSpec((None, 8))
    )
    treats_each_sample_alone(traced.graph, traced.inputs, traced.outputs)
    # True
    ```

    Args:
        graph: The graph.
        inputs: Its inputs, axis 0 of which is that of samples, of unknown
            length.
        outputs: Its outputs.

    Returns:
        False also where it cannot be told.
    """
    follower = _Follower({x.ref(): 1 for x in inputs})
    follows = all(map(follower.follow, graph.get_operations()))
    return follows and all(follower.rows.get(y.ref()) == 1 for y in outputs)


class _Follower:
    """What is known of tensors of a graph, op by op.

    Attributes:
        rows: Rows that each sample has on axis 0, which lie side by side:
            several where samples and pixels have become one axis. Tensors that
            have nothing of samples are not in it.
        sizes: Values of tensors that are made of sizes.
    """

    def __init__(self, rows: dict[Any, int]) -> None:
        self.rows = rows
        self.sizes: dict[Any, np.ndarray] = {}

    def follow(self, op: tf.Operation) -> bool:
        """Notes what is known of an op's results; False if that is nothing."""
        if op.op_def.is_stateful and op.type not in _READS:
            return False  # Such as one that draws.
        has_own_gradient = "_gradient_op_type" in op.node_def.attr
        if has_own_gradient and op.type != "IdentityN":
            return False  # As Graph.gradient_override_map gives it.
        counts = [self.rows.get(x.ref(), 0) for x in op.inputs]
        values = [self.sizes.get(x.ref()) for x in op.inputs]
        of_sizes = any(value is not None for value in values)
        if op.type == "Shape" and counts[0]:
            shape = [counts[0] * _SAMPLES, *op.inputs[0].shape[1:]]
            self.sizes[op.outputs[0].ref()] = np.array(shape, object)
            return True
        if of_sizes and not (op.type == "Reshape" and counts[0]):
            # Each device has a batch of its own, which only shapes may know.
            value = None if any(counts) else _value(op, values)
            if value is not None:
                self.sizes[op.outputs[0].ref()] = value
            return value is not None
        if not any(counts):
            return True
        if op.type == "IdentityN":
            self._note(op.outputs, counts)
            return self._follows_gradient(op, counts)
        if op.type == "Reshape" and counts[0]:
            count = _rows_as_shaped(op, counts[0], values[1])
        else:
            count = _rows_of_result(op, counts)
        self._note(op.outputs, [count] * len(op.outputs))
        return bool(count)

    def _note(
        self, tensors: Sequence[tf.Tensor], counts: Sequence[int]
    ) -> None:
        self.rows.update(
            (x.ref(), n) for x, n in zip(tensors, counts, strict=True) if n
        )

    def _follows_gradient(
        self, op: tf.Operation, counts: Sequence[int]
    ) -> bool:
        """Whether a gradient of the user's treats each sample alone as well.

        That of `tf.custom_gradient`, which makes such an op, may be another
        function than the ops before it say.
        """
        before = len(op.graph.get_operations())
        with op.graph.as_default():
            upstream = [
                tf.compat.v1.placeholder(y.dtype, y.shape) for y in op.outputs
            ]
            gradients = tf.gradients(op.outputs, op.inputs, upstream)
        self._note(upstream, counts)
        of_samples = {
            dx.ref(): count
            for dx, count in zip(gradients, counts, strict=True)
            if count and dx is not None
        }
        # Those of weights may be sums over samples.
        needed = {x.deref().op for x in of_samples}
        ops = []
        for one in reversed(op.graph.get_operations()[before:]):
            if one in needed:
                needed.update(x.op for x in one.inputs)
                ops.append(one)
        return all(map(self.follow, reversed(ops))) and all(
            self.rows.get(dx) == count for dx, count in of_samples.items()
        )


def _rows_of_result(op: tf.Operation, counts: Sequence[int]) -> int:
    """Rows that each sample has in an op's results; 0 if that cannot be told.

    Args:
        op: The op.
        counts: Rows that each sample has in its inputs; 0 in those that have
            nothing of samples.
    """
    if any(x.shape.rank is None for x in (*op.inputs, *op.outputs)):
        return 0
    if len(set(counts) - {0}) > 1 or not _keeps_rows(op, counts):
        return 0
    return max(counts)


def _keeps_rows(op: tf.Operation, marks: Sequence[int]) -> bool:
    """Whether each row of an op's results is made of the same of its inputs.

    Args:
        op: The op.
        marks: Of each of its inputs whether axis 0 is that of samples.
    """
    kind, rank = op.type, op.inputs[0].shape.rank
    alone = bool(marks[0]) and not any(marks[1:])
    if kind in _ELEMENTWISE:
        return alone
    if kind in _BROADCAST:
        return _is_broadcast(op, marks)
    if kind == "Einsum":
        return _is_sum(op, marks)
    if kind in ("BatchMatMul", "BatchMatMulV2"):
        return _is_product(op, marks)
    if kind in ("ConcatV2", "Pack"):
        count, pack = op.get_attr("N"), kind == "Pack"
        axis = op.get_attr("axis") if pack else _constant(op.inputs[-1])
        return all(marks[:count]) and _is_later(axis, rank + pack)
    if kind == "Split":
        axis, rank = _constant(op.inputs[0]), op.inputs[1].shape.rank
        return _is_later(axis, rank)
    if not alone:
        return False
    if kind in _OF_IMAGES:
        return True
    if kind in ("Softmax", "LogSoftmax"):
        return rank > 1
    if kind == "MatMul":
        return not op.get_attr("transpose_a")
    if kind in _REDUCTIONS:
        return _is_later(_constant(op.inputs[1]), rank)
    if kind == "ExpandDims":
        return _is_later(_constant(op.inputs[1]), rank + 1)
    if kind == "Squeeze":
        axes = op.get_attr("squeeze_dims")
        return bool(axes) and _is_later(axes, rank)
    if kind == "SplitV":
        return _is_later(_constant(op.inputs[2]), rank)
    if kind == "Unpack":
        return _is_later(op.get_attr("axis"), rank)
    if kind == "Transpose":
        axes = _constant(op.inputs[1])
        return axes is not None and axes[0] == 0
    if kind in ("Pad", "PadV2", "MirrorPad"):
        zeros = _constant(op.inputs[1])
        return zeros is not None and not any(zeros[0])
    if kind == "Tile":
        times = _constant(op.inputs[1])
        return times is not None and times[0] == 1
    if kind == "GatherV2":
        axis = _constant(op.inputs[2])
        return not op.get_attr("batch_dims") and _is_later(axis, rank)
    return kind == "StridedSlice" and _takes_all_rows(op)


def _constant(x: tf.Tensor) -> Any:
    """The numbers of a tensor that are known now, else None."""
    value = tf.get_static_value(x)
    return None if value is None else value.tolist()


def _is_later(axes: Any, rank: int) -> bool:
    """Whether axes are known, and none is the first."""
    if axes is None:
        return False
    listed = axes if isinstance(axes, list) else [axes]
    return all(axis % rank != 0 for axis in listed)


def _is_broadcast(op: tf.Operation, marks: Sequence[int]) -> bool:
    """Whether samples are first in the result, and meet only themselves."""
    (result,) = op.outputs
    rank = result.shape.rank
    return all(
        x.shape.rank == rank if mark else x.shape.rank < rank or x.shape[0] == 1
        for x, mark in zip(op.inputs, marks, strict=True)
    )


def _is_product(op: tf.Operation, marks: Sequence[int]) -> bool:
    """Whether a product of many matrices has one, or rows, of each sample."""
    x, y = op.inputs
    rank = op.outputs[0].shape.rank
    if rank < 3 or x.shape.rank != rank or not marks[0]:
        return False
    return y.shape.rank == rank if marks[1] else y.shape.rank == 2


def _is_sum(op: tf.Operation, marks: Sequence[int]) -> bool:
    """Whether the samples of an Einsum's inputs are those of its result."""
    operands, _, result = op.get_attr("equation").decode().partition("->")
    names = operands.split(",")
    firsts = {name[:1] for name, mark in zip(names, marks, strict=True) if mark}
    others = "".join(
        n for n, mark in zip(names, marks, strict=True) if not mark
    )
    alone = all(
        name.count(name[0]) == 1
        for name, mark in zip(names, marks, strict=True)
        if mark and name
    )
    return alone and firsts == {result[:1]} and not firsts & {*others, ".", ""}


def _rows_as_shaped(op: tf.Operation, count: int, value: Any) -> int:
    """Rows of each sample after a reshape; 0 if that cuts samples apart.

    Args:
        op: The reshape.
        count: Rows of each sample before it.
        value: The shape, if it is made of sizes.
    """
    sample = op.inputs[0].shape[1:]
    shape = _constant(op.inputs[1]) if value is None else value.tolist()
    if not shape or None in shape or not sample.is_fully_defined():
        return 0
    numbers = count * sample.num_elements() * _SAMPLES
    if -1 in shape:
        known = -math.prod(shape)
        if known <= 0 or numbers % known:
            return 0
        shape[shape.index(-1)] = numbers // known
    # 0 unless the first size is so many times the number of samples.
    return int(shape[0] // _SAMPLES)


def _value(op: tf.Operation, values: Sequence[Any]) -> np.ndarray | None:
    """What an op makes of sizes; None if that is not known.

    Args:
        op: The op.
        values: Values of those of its inputs that are made of sizes.
    """
    operands = [
        tf.get_static_value(x) if value is None else value
        for x, value in zip(op.inputs, values, strict=True)
    ]
    if any(operand is None for operand in operands):
        return None
    x = operands[0]
    if op.type in ("Cast", "Identity"):
        return x
    unknown = any(None in np.ravel(operand).tolist() for operand in operands)
    if op.type in ("Mul", "Prod") and unknown:
        return None
    if op.type == "Mul":
        return np.array(x * operands[1], object)
    if op.type == "Pack":
        return np.stack(operands, op.get_attr("axis"))
    if op.type == "ConcatV2":
        return np.concatenate(operands[:-1], int(operands[-1]))
    if values[0] is None:
        return None
    if op.type == "GatherV2":
        return np.take(x, operands[1].astype(int), int(operands[2]))
    if op.type == "Prod":
        return np.array(math.prod(x.ravel().tolist()), object)
    if op.type == "StridedSlice" and x.ndim == 1:
        begin, end, stride = (int(n[0]) for n in operands[1:])
        if op.get_attr("shrink_axis_mask"):
            return np.array(x[begin], object)
        return x[
            slice(
                None if op.get_attr("begin_mask") else begin,
                None if op.get_attr("end_mask") else end,
                stride,
            )
        ]
    return None


def _takes_all_rows(op: tf.Operation) -> bool:
    """Whether a slice takes all of the first axis, in its order."""
    begin, _, strides = (_constant(x) for x in op.inputs[1:])
    if begin is None or strides is None:
        return False
    for mask in ("new_axis_mask", "shrink_axis_mask"):
        if op.get_attr(mask) & 1:
            return False
    if op.get_attr("ellipsis_mask") & 1:
        # It stands for all axes that no other number is for.
        added = op.get_attr("new_axis_mask").bit_count()
        return len(begin) - 1 - added < op.inputs[0].shape.rank
    whole = op.get_attr("begin_mask") & op.get_attr("end_mask") & 1
    return bool(whole) and strides[0] == 1
