"""Where feature maps lie, from layer to layer of a graph.

Goes through the layers of a model in the order of its graph, and tells the
copy of each how its input will lie. The first call of a layer that is called
at several places decides; where others lie differently they are joined
(`OnShards`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras.src.models.functional import Functional

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import Layout
from tf_convpar.placement import place
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding.rules import rule_for


class Regions:
    """Makes the layers of a model that works on shards.

    Args:
        copy: The new layer for each of the model's own.
    """

    def __init__(self, copy: Callable[[Any], Any]) -> None:
        self._copy = copy
        self._settled: set[int] = set()
        self._lies: dict[int, Layout | None] = {}
        self._to_place: list[tuple[Any, dict[str, Layout]]] = []

    def enter(self, model: Any) -> None:
        """Makes the layers of a functional model."""
        depths = model._nodes_by_depth
        for depth in sorted(depths, reverse=True):
            for node in depths[depth]:
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
        if isinstance(layer, Functional | keras.Sequential):
            return  # What goes in and comes out of it is joined.
        inputs = [self._lies.get(id(tensor)) for tensor in node.input_tensors]
        lies = None
        if id(layer) not in self._settled:
            self._settled.add(id(layer))
            lies = self._settle(layer, made, node, inputs)
        for output in node.outputs:
            self._lies[id(output)] = lies

    def _settle(
        self, layer: Any, made: Any, node: Any, inputs: list[Layout | None]
    ) -> Layout | None:
        """Tells a new layer how its input lies; says how its output will."""
        if isinstance(made, ConvParallel):
            shape = node.input_tensors[0].shape
            return made.join_region(shape, inputs[0])
        known = [layout for layout in inputs if layout is not None]
        rule = None
        if getattr(layer, "quantization_mode", None) is None:
            rule = rule_for(layer)
        output = None
        if rule is not None and known and _only(node, len(known)):
            shape = node.input_tensors[0].shape
            output = rule.output(layer, known, shape)
        if rule is None or output is None:
            return None
        made.call = OnShards(made, rule, known)
        layouts = dict(rule.place(layer, known))
        if layouts:
            self._to_place.append((made, layouts))
        # A single device is the chief: the rule gives a tensor there.
        return None if output.devices == (output.owner,) else output


def _only(node: Any, known: int) -> bool:
    """Whether nothing but shards goes in, and numbers into an operation."""
    others = [
        value
        for value in keras.tree.flatten(
            (node.arguments.args, node.arguments.kwargs)
        )
        if not isinstance(value, bool | int | float | None)
    ]
    layer = isinstance(node.operation, keras.layers.Layer)
    return known == len(node.input_tensors if layer else others)
