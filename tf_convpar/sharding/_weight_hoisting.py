"""Traced functions that compute once what depends on weights alone.

Of the ops of a network's inference most are on weights: reads of variables, and
the factors of normalizations. Their results stay the same until somebody trains
the network or loads other weights. Until then they are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops

# The one op on variables that a function may have, to be hoisted.
_READ = "ReadVariableOp"


class HoistedFunction:
    """A traced function that keeps the tensors it computes of weights alone.

    ```python
    hoisted = HoistedFunction.of(function.get_concrete_function(x))
    y = hoisted(x)
    ```

    Each call looks at the weights, and computes these tensors again if one of
    them has changed.
    """

    def __init__(
        self,
        function: Any,
        device: str,
        read: Mapping[str, tf.Tensor],
        hoisted: Sequence[tf.Tensor],
    ) -> None:
        self._device = device
        captured = _captured(function)
        self._handles = tf.stack([captured[name] for name in read])
        values = list(read.values())

        @tf.function
        def of_weights() -> list[tf.Tensor]:
            tensors = _imported(function, captured, [*values, *hoisted])
            with tf.device(device):
                packs = tensors[: len(values)], tensors[len(values) :]
                return [ops.pack(pack) for pack in packs]

        @tf.function
        def results(packed: tf.Tensor, *inputs: tf.Tensor) -> Any:
            with tf.device(device):
                kinds = [x.dtype for x in hoisted], [x.shape for x in hoisted]
                unpacked = ops.unpack(packed, *kinds)
            known_values = dict(zip(_names(hoisted), unpacked, strict=True))
            names = _names(_inputs(function))
            known_values |= dict(zip(names, inputs, strict=True))
            outputs = _imported(function, known_values, function.outputs)
            return tf.nest.pack_sequence_as(
                function.structured_outputs, outputs, expand_composites=True
            )

        self._hoisted_tensors = of_weights.get_concrete_function()
        self._rest = results.get_concrete_function(
            tf.TensorSpec([], tf.variant),
            *(tf.TensorSpec(x.shape, x.dtype) for x in _inputs(function)),
        )
        self._packs: Any = None

    @classmethod
    def of(cls, function: Any) -> HoistedFunction | None:
        """The function with hoisted weights; None for one that stays whole.

        That is one with effects, with variables on several devices or with
        none, or one some of whose results depend on weights alone.

        Args:
            function: A concrete function.
        """
        captured = _captured(function)
        devices = {x.device for x in captured.values()}
        read: dict[str, tf.Tensor] = {}
        for op in function.graph.get_operations():
            if op.type == _READ:
                read.setdefault(op.inputs[0].name, op.outputs[0])
            elif op.op_def.is_stateful or not {op.device} <= {"", *devices}:
                return None
        by_inputs = _depending_on(_inputs(function), function)
        hoisted = _hoisted_tensors(function, by_inputs)
        weights_decide = any(x.op not in by_inputs for x in function.outputs)
        reads_captured = bool(read) and read.keys() <= captured.keys()
        if (
            weights_decide
            or not reads_captured
            or not hoisted
            or len(devices) != 1
        ):
            return None
        return cls(function, devices.pop(), read, hoisted)

    def __call__(self, *inputs: tf.Tensor) -> Any:
        """Calls the function.

        Args:
            inputs: Tensors, one for each of the function's own.
        """
        packs = self._packs
        if packs is None or not self._unchanged(packs[0]):
            self._packs = packs = self._hoisted_tensors()
        return self._rest(packs[1], *inputs)

    def _unchanged(self, values: tf.Tensor) -> bool:
        with tf.device(self._device):
            return ops.unchanged(self._handles, values)


def _names(tensors: Iterable[tf.Tensor]) -> list[str]:
    return [x.name for x in tensors]


def _captured(function: Any) -> dict[str, tf.Tensor]:
    """Tensors that a function captures, by their names within it."""
    outer = function.captured_inputs
    inner = function.inputs[len(function.inputs) - len(outer) :]
    return dict(zip(_names(inner), outer, strict=True))


def _inputs(function: Any) -> list[tf.Tensor]:
    return function.inputs[: len(function.inputs) - len(_captured(function))]


def _depending_on(
    inputs: Iterable[tf.Tensor], function: Any
) -> set[tf.Operation]:
    """The operations that depend on some inputs."""
    operations = {x.op for x in inputs}
    for op in function.graph.get_operations():
        if any(x.op in operations for x in op.inputs):
            operations.add(op)
    return operations


def _hoisted_tensors(
    function: Any, by_inputs: set[tf.Operation]
) -> list[tf.Tensor]:
    """Tensors that depend on weights alone, and are used beside inputs."""
    hoisted: dict[str, tf.Tensor] = {}
    for op in _needed(function.outputs, lambda x: x.op not in by_inputs):
        for x in op.inputs:
            # Constants are as well where they are used: shapes are of them.
            if x.op not in by_inputs and x.op.type != "Const":
                hoisted[x.name] = x
    return list(hoisted.values())


def _needed(
    outputs: Iterable[tf.Tensor], is_given: Callable[[tf.Tensor], bool]
) -> set[tf.Operation]:
    """The operations that compute outputs of the tensors that are given."""
    operations: set[tf.Operation] = set()
    pending = [x.op for x in outputs]
    while pending:
        op = pending.pop()
        if op not in operations:
            operations.add(op)
            pending += [x.op for x in op.inputs if not is_given(x)]
    return operations


def _imported(
    function: Any, values: Mapping[str, tf.Tensor], outputs: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Makes some tensors of a function anew, in the graph that is traced."""
    needed = _needed(outputs, lambda x: x.name in values)
    graph = tf.compat.v1.GraphDef()
    graph.library.CopyFrom(function.graph.as_graph_def().library)
    used = {x.name for op in needed for x in op.inputs}
    for op in function.graph.get_operations():
        if op in needed:
            node = graph.node.add()
            node.CopyFrom(op.node_def)
            # No op has effects, so nothing else says when one is due.
            data_inputs = [
                name for name in node.input if not name.startswith("^")
            ]
            node.input[:] = data_inputs
    # An identity, as captured tensors are not of this graph.
    mapped = {
        name: tf.identity(values[name]) for name in values if name in used
    }
    tensors: list[tf.Tensor] = tf.graph_util.import_graph_def(
        graph, input_map=mapped, return_elements=_names(outputs), name="whole"
    )
    return tensors
