"""Where feature maps lie, from layer to layer of a graph.

Goes through the layers of a model in the order of its graph, and tells the
copy of each how its input will lie. The first call of a layer that is called
at several places decides; where others lie differently they are joined
(`OnShards`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import place
from tf_convpar.sharding import _walk
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding.rules import Rule
from tf_convpar.sharding.rules import SampleRule
from tf_convpar.sharding.rules import rule_for
from tf_convpar.sharding.rules import sample_rule_for


class Regions:
    """Makes the layers of a model that works on shards.

    Args:
        copy: The new layer for each of the model's own.
    """

    def __init__(self, copy: Callable[[Any], Any]) -> None:
        self._copy = copy
        self._settled: set[int] = set()
        self._lies: dict[int, AnyLayout | None] = {}
        self._to_place: list[tuple[Any, dict[str, Layout]]] = []

    def enter(self, model: Any) -> None:
        """Makes the layers of a functional model."""
        for node in _walk.nodes(model):
            if not node.is_input:
                self._visit(node)

    def place(self) -> None:
        """Cuts the weights that lie beside shards; the layers are built."""
        for layer, layouts in self._to_place:
            for name, layout in layouts.items():
                place(getattr(layer, name), layout)

    def _visit(self, node: Any) -> None:
        layer = node.operation
        made = self._copy(layer)
        if _walk.is_graph(layer):
            return  # What goes in and comes out of it is joined.
        inputs = [self._lies.get(id(tensor)) for tensor in node.input_tensors]
        lies = None
        if id(layer) not in self._settled:
            self._settled.add(id(layer))
            lies = self._settle(layer, made, node, inputs)
        for output in node.outputs:
            self._lies[id(output)] = lies

    def _settle(
        self, layer: Any, made: Any, node: Any, inputs: list[AnyLayout | None]
    ) -> AnyLayout | None:
        """Tells a new layer how its input lies; says how its output will."""
        if isinstance(made, ConvParallel):
            shape = node.input_tensors[0].shape
            return made.join_region(shape, inputs[0])
        by_samples = [x for x in inputs if isinstance(x, SampleLayout)]
        if by_samples:
            on_samples = works_on_samples(node)
            if on_samples is None:
                return None
            made.call = OnSamples(made, on_samples, by_samples[0])
            return by_samples[0]
        known = [x for x in inputs if isinstance(x, Layout)]
        on_channels = works_on_channels(node, known)
        if on_channels is None:
            return None
        rule, output = on_channels
        made.call = OnShards(made, rule, known)
        layouts = dict(rule.place(layer, known))
        if layouts:
            self._to_place.append((made, layouts))
        return output


def works_on_channels(
    node: Any, known: Sequence[Layout]
) -> tuple[Rule, Layout | None] | None:
    """The rule by which a layer works on shards of channels.

    Args:
        node: Of the graph.
        known: How its inputs lie, as many as are in shards.

    Returns:
        The rule, and how the output lies: None if on the chief. Nothing if the
        inputs must be joined.
    """
    layer = node.operation
    if getattr(layer, "quantization_mode", None) is not None:
        return None
    rule = rule_for(layer)
    if rule is None or not known or not _only(node, len(known)):
        return None
    output = rule.output(layer, known, node.input_tensors[0].shape)
    if output is None:
        return None
    # A single device is the chief: the rule gives a tensor there.
    on_chief = output.devices == (output.owner,)
    return rule, None if on_chief else output


def works_on_samples(node: Any) -> SampleRule | None:
    """The rule by which a layer works on shards of samples; None if none.

    Inputs that lie otherwise will be sent to where the samples are.
    """
    layer, tensors = node.operation, node.input_tensors
    if getattr(layer, "quantization_mode", None) is not None:
        return None
    # One that is broadcast along the samples cannot be cut.
    alike = len({tensor.shape[0] for tensor in tensors}) == 1
    if not alike or not _only(node, len(tensors)) or _arrays(node):
        return None
    shapes = [tensor.shape for tensor in (*tensors, *node.outputs)]
    return sample_rule_for(layer, shapes)


def _only(node: Any, known: int) -> bool:
    """Whether nothing but shards goes in, and numbers into an operation."""
    others = [
        value
        for value in _given(node)
        if not isinstance(value, bool | int | float | str | None)
    ]
    layer = isinstance(node.operation, keras.layers.Layer)
    return known == len(node.input_tensors if layer else others)


def _arrays(node: Any) -> bool:
    """Whether a layer is given arrays, such as a mask for all samples."""
    return any(
        not isinstance(value, keras.KerasTensor) and getattr(value, "shape", ())
        for value in _given(node)
    )


def _given(node: Any) -> list[Any]:
    arguments = node.arguments.args, node.arguments.kwargs
    return list(keras.tree.flatten(arguments))
