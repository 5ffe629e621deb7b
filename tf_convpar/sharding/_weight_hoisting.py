"""A traced function in two: what weights alone decide, and the rest.

Of the ops of a network's inference most are on weights: reads of variables, and
the factors of normalizations. Their results stay the same until somebody trains
the network or loads other weights. So does what is kept of them here.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_convpar import ops

# What may be done with a variable in a function that is divided.
_READ = "ReadVariableOp"


class Divided:
    """Does what a function does, and keeps what it makes of weights.

    ```python
    divided = Divided.of(function.get_concrete_function(x))
    y = divided(x)
    ```

    Weights are looked at in each call. What was made of them is made again
    after one of them has changed.
    """

    def __init__(
        self,
        function: Any,
        device: str,
        read: Mapping[str, tf.Tensor],
        made: Sequence[tf.Tensor],
    ) -> None:
        self._device = device
        captured = _captured(function)
        self._handles = tf.stack([captured[name] for name in read])
        values = list(read.values())

        @tf.function
        def of_weights() -> list[tf.Tensor]:
            found = _imported(function, captured, [*values, *made])
            with tf.device(device):
                packs = found[: len(values)], found[len(values) :]
                return [ops.pack(pack) for pack in packs]

        @tf.function
        def rest(packed: tf.Tensor, *inputs: tf.Tensor) -> Any:
            with tf.device(device):
                kinds = [x.dtype for x in made], [x.shape for x in made]
                own = ops.unpack(packed, *kinds)
            given = dict(zip(_names(made), own, strict=True))
            names = _names(_inputs(function))
            given |= dict(zip(names, inputs, strict=True))
            found = _imported(function, given, function.outputs)
            return tf.nest.pack_sequence_as(
                function.structured_outputs, found, expand_composites=True
            )

        self._of_weights = of_weights.get_concrete_function()
        self._rest = rest.get_concrete_function(
            tf.TensorSpec([], tf.variant),
            *(tf.TensorSpec(x.shape, x.dtype) for x in _inputs(function)),
        )
        self._packs: Any = None

    @classmethod
    def of(cls, function: Any) -> Divided | None:
        """The function in two parts; None for one that stays whole.

        That is one with effects, with variables on several devices or with
        none, or one some of whose results weights alone decide.

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
        by_inputs = _by(_inputs(function), function)
        made = _of_weights(function, by_inputs)
        alone = any(x.op not in by_inputs for x in function.outputs)
        known = bool(read) and read.keys() <= captured.keys()
        if alone or not known or not made or len(devices) != 1:
            return None
        return cls(function, devices.pop(), read, made)

    def __call__(self, *inputs: tf.Tensor) -> Any:
        """What the function returns for these inputs.

        Args:
            inputs: Tensors, one for each of the function's own.
        """
        packs = self._packs
        if packs is None or not self._unchanged(packs[0]):
            self._packs = packs = self._of_weights()
        return self._rest(packs[1], *inputs)

    def _unchanged(self, values: tf.Tensor) -> bool:
        with tf.device(self._device):
            return ops.unchanged(self._handles, values)


def _names(tensors: Iterable[tf.Tensor]) -> list[str]:
    return [x.name for x in tensors]


def _captured(function: Any) -> dict[str, tf.Tensor]:
    """What a function has beside its inputs, by the names that it gives it."""
    outer = function.captured_inputs
    inner = function.inputs[len(function.inputs) - len(outer) :]
    return dict(zip(_names(inner), outer, strict=True))


def _inputs(function: Any) -> list[tf.Tensor]:
    return function.inputs[: len(function.inputs) - len(_captured(function))]


def _by(inputs: Iterable[tf.Tensor], function: Any) -> set[tf.Operation]:
    """The operations that some inputs decide."""
    found = {x.op for x in inputs}
    for op in function.graph.get_operations():
        if any(x.op in found for x in op.inputs):
            found.add(op)
    return found


def _of_weights(function: Any, by_inputs: set[tf.Operation]) -> list[tf.Tensor]:
    """What inputs do not decide, of that which goes together with inputs."""
    found: dict[str, tf.Tensor] = {}
    for op in _needed(function.outputs, lambda x: x.op not in by_inputs):
        for x in op.inputs:
            # Constants are as well where they are used: shapes are of them.
            if x.op not in by_inputs and x.op.type != "Const":
                found[x.name] = x
    return list(found.values())


def _needed(
    outputs: Iterable[tf.Tensor], given: Callable[[tf.Tensor], bool]
) -> set[tf.Operation]:
    """The operations that make some tensors of those that are given."""
    found: set[tf.Operation] = set()
    left = [x.op for x in outputs]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left += [x.op for x in op.inputs if not given(x)]
    return found


def _imported(
    function: Any, given: Mapping[str, tf.Tensor], outputs: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Makes some tensors of a function anew, in the graph that is traced."""
    needed = _needed(outputs, lambda x: x.name in given)
    graph = tf.compat.v1.GraphDef()
    graph.library.CopyFrom(function.graph.as_graph_def().library)
    used = {x.name for op in needed for x in op.inputs}
    for op in function.graph.get_operations():
        if op in needed:
            node = graph.node.add()
            node.CopyFrom(op.node_def)
            # No op has effects, so nothing else says when one is due.
            kept = [name for name in node.input if not name.startswith("^")]
            node.input[:] = kept
    # An identity, as what is captured is not of this graph.
    mapped = {name: tf.identity(given[name]) for name in given if name in used}
    found: list[tf.Tensor] = tf.graph_util.import_graph_def(
        graph, input_map=mapped, return_elements=_names(outputs), name="whole"
    )
    return found
