"""Whether a layer's call can work on shards of channels, or of samples."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import Layout
from tf_convpar.sharding import _conversion
from tf_convpar.sharding import _keras_graph
from tf_convpar.sharding.rules import CHIEF
from tf_convpar.sharding.rules import Rule
from tf_convpar.sharding.rules import SampleRule
from tf_convpar.sharding.rules import rule_for
from tf_convpar.sharding.rules import sample_rule_for


def works_on_channels(
    node: Any, layouts: Sequence[Layout]
) -> tuple[Rule, Layout | None] | None:
    """The rule by which a layer works on shards of channels.

    Args:
        node: Call of the layer in the graph.
        layouts: Layouts of its inputs that are in shards.

    Returns:
        The rule and the layout of the output, which is None if the output is
        on the chief. None in place of both if the inputs must be joined.
    """
    layer = node.operation
    if getattr(layer, "quantization_mode", None) is not None:
        return None
    rule = rule_for(layer)
    if rule is None or not layouts or not _only(node, len(layouts)):
        return None
    output = rule.output(layer, layouts, node.input_tensors[0].shape)
    if output is None:
        return None
    return rule, None if output is CHIEF else output


def works_on_samples(node: Any, moments: str = "all") -> SampleRule | None:
    """The rule by which a layer works on shards of samples; None if none.

    Inputs that lie otherwise will be sent to where the samples are.

    Args:
        node: Call of the layer in the graph.
        moments: As for `parallelize`.
    """
    layer, tensors = node.operation, node.input_tensors
    if getattr(layer, "quantization_mode", None) is not None:
        return None
    # An input that is broadcast along the samples cannot be cut, and neither
    # can a single number.
    shapes = [tensor.shape for tensor in (*tensors, *node.outputs)]
    alike = len({tensor.shape[:1] for tensor in tensors}) == 1
    alike = alike and all(map(len, shapes))
    if not alike or not _only(node, len(tensors)) or _arrays(node):
        return None
    return sample_rule_for(node, shapes, moments)


def leading(model: Any) -> Mapping[int, Any]:
    """The calls before a model's first convolutions that can go with them.

    These are preprocessing layers, such as `Rescaling`, `Normalization` and
    `ZeroPadding2D`. If the convolution is split by samples, each device
    preprocesses its own samples. The chief alone would keep all others waiting.
    Also, images are sent before they have grown.

    Args:
        model: A built model, Sequential or functional.

    Returns:
        The layer that each such call leads to, by the `id` of the call's node.
    """
    producers: dict[int, Any] = {}
    consumers: dict[int, list[Any]] = collections.defaultdict(list)
    for node in _keras_graph.nodes(model):
        producers.update({id(y): node for y in node.outputs})
        for x in node.input_tensors:
            consumers[id(x)].append(node)
    output_ids = {
        id(y) for y in keras.tree.flatten(_keras_graph.graph_of(model).outputs)
    }
    leads_to: dict[int, Any] = {}
    for node in _keras_graph.nodes(model):
        layer = node.operation
        dense = isinstance(layer, keras.layers.Dense)
        parallel = isinstance(layer, ConvParallel)
        if dense or not (parallel or _conversion.may_be_split(layer)):
            continue
        chain = []
        (x,) = node.input_tensors
        before = producers[id(x)]
        while not before.is_input and (
            len(consumers[id(x)]) == 1
            and id(x) not in output_ids
            and len(before.input_tensors) == 1
            and _size(before.input_tensors[0]) <= _size(x)
            and works_on_samples(before) is not None
        ):
            chain.append(before)
            (x,) = before.input_tensors
            before = producers[id(x)]
        if before.is_input:
            leads_to.update({id(call): layer for call in chain})
    return leads_to


def _size(tensor: Any) -> int:
    """Bytes of one sample of a tensor."""
    return tf.as_dtype(tensor.dtype).size * math.prod(
        n or 1 for n in tensor.shape[1:]
    )


def _only(node: Any, count: int) -> bool:
    """Whether a call has `count` tensors as arguments, and else numbers only.

    Only an operation of `keras.ops` may be given numbers.
    """
    tensor_arguments = [
        value
        for value in _arguments(node)
        if not isinstance(value, bool | int | float | str | None)
    ]
    layer = isinstance(node.operation, keras.layers.Layer)
    return count == len(node.input_tensors if layer else tensor_arguments)


def _arrays(node: Any) -> bool:
    """Whether a layer is given arrays, such as a mask for all samples."""
    return any(
        not isinstance(value, keras.KerasTensor) and getattr(value, "shape", ())
        for value in _arguments(node)
    )


def _arguments(node: Any) -> list[Any]:
    arguments = node.arguments.args, node.arguments.kwargs
    return list(keras.tree.flatten(arguments))
