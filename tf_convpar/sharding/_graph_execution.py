"""Runs the graph of a model, with shards between layers that work on them.

Layers return shards only where a functional model runs them, and only layers
that work on shards are given any. Whatever leaves the graph, or goes to any
other layer in it, is a tensor. This holds in a parallelized model and in every
model made of its layers, such as `keras.Model(model.input, layer.output)`.

Keras has no hook for what goes from layer to layer of a graph, so the one
method that runs it is wrapped. It does as before for graphs without such
layers.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_convpar._compat.keras import Functional
from tf_convpar._compat.keras import made_by
from tf_convpar._compat.keras import nodes_by_depth
from tf_convpar._compat.patches import replace
from tf_convpar.layers import ConvParallel
from tf_convpar.layers import is_inference
from tf_convpar.layers import within_region
from tf_convpar.placement import Needed
from tf_convpar.placement import ShardedTensor
from tf_convpar.placement import packed
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import joined
from tf_convpar.sharding._attach import masked_as
from tf_convpar.sharding._attach import works_on_shards
from tf_convpar.sharding._fused_normalization import without_note


def _in_regions(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def wrapped(
        self: Functional,
        inputs: Any,
        operation_fn: Callable[[Any], Any] = lambda operation: operation,
        call_fn: Callable[..., Any] | None = None,
    ) -> Any:
        if call_fn is not None or not any(
            works_on_shards(operation) for operation in self.operations
        ):
            return run(self, inputs, operation_fn, call_fn)
        place = functools.partial(
            _placed, operation_fn, _outputs_used_inside(self)
        )
        # Without a function each weight is sent when it is needed.
        eagerly = tf.executing_eagerly()
        needed = [] if eagerly else needed_of(self, not is_inference())
        with packed(needed):
            results = joined(run(self, inputs, place))
        # Who gets them may differentiate by them.
        return keras.tree.map_structure(without_note, results)

    return wrapped


def needed_of(graph: Functional, training: bool) -> list[Needed]:
    """The weights that a graph's layers need on several devices, each once."""
    by_weight: dict[int, Needed] = {}
    for operation in graph.operations:
        call = vars(operation).get("call")
        needed: list[Needed] = []
        if isinstance(operation, ConvParallel) and operation.is_spread:
            needed = operation.needed()
        elif isinstance(call, OnSamples):
            needed = call.rule.needed(operation, call.layout, training)
        for weight in needed:
            by_weight.setdefault(id(weight.weight), weight)
    return list(by_weight.values())


def _outputs_used_inside(graph: Functional) -> set[int]:
    """The `id`s of operations whose results leave a graph and are used in it.

    Programs differentiate by such results (Grad-CAM), so the graph must use the
    tensor that left.
    """
    depths: Any = nodes_by_depth(graph)
    nodes = itertools.chain.from_iterable(depths.values())
    used = {id(x) for node in nodes for x in node.input_tensors}
    return {id(made_by(x)) for x in graph.outputs if id(x) in used}


def _placed(
    operation_fn: Callable[[Any], Any], read: set[int], operation: Any
) -> Callable[..., Any]:
    """The call of an operation, which is given shards if it works on them."""
    call = operation_fn(operation)
    on_shards = works_on_shards(operation)
    # One that is whole may leave a note on its result.
    within = on_shards or isinstance(operation, ConvParallel)

    def placed(*args: Any, **kwargs: Any) -> Any:
        if not on_shards:
            args, kwargs = joined((args, kwargs))
        with within_region() if within else contextlib.nullcontext():
            result = call(*args, **kwargs)
        if id(operation) in read:
            result = keras.tree.map_structure(_rejoined, result)
        return result

    return placed


def _rejoined(x: Any) -> Any:
    """Joins shards and cuts them again; takes notes off a tensor."""
    if isinstance(x, ShardedTensor):
        return masked_as(x, x.of_joined())
    return without_note(x)


replace(
    "keras.src.models.functional:Functional._run_through_graph",
    by=_in_regions,
)
