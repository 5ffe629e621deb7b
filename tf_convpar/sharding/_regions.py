"""Layouts of feature maps, chosen from layer to layer of a graph.

`Regions` goes through the layers of a model in the order of its graph, and
tells the copy of each how its input will lie. If a layer is called at several
places, the first call decides. Inputs of its other calls that lie differently
are joined (`OnShards`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Layout
from tf_convpar.placement import SampleLayout
from tf_convpar.placement import place
from tf_convpar.sharding import _keras_graph
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding._attach import attach
from tf_convpar.sharding._fusable import fuses
from tf_convpar.sharding._fused_normalization import Fused
from tf_convpar.sharding._layer_ops import op_call_of
from tf_convpar.sharding._placement_rules import leading
from tf_convpar.sharding._placement_rules import works_on_channels
from tf_convpar.sharding._placement_rules import works_on_samples
from tf_convpar.sharding.rules import OpCall


class Regions:
    """Makes the layers of a model that works on shards, with their layouts.

    Args:
        copy: Function that returns the new layer for one of the model's.
        fuses: Whether ops of this package compute layers, and layers on the
            chief take part in what `_fused_normalization` does.
        moments: By which moments samples are normalized: `"all"` or `"own"`.
    """

    def __init__(
        self,
        copy: Callable[[Any], Any],
        fuses: bool = False,
        moments: str = "all",
    ) -> None:
        self._copy = copy
        self._fuses = fuses
        self._moments = moments
        self._settled: set[int] = set()
        # How often each tensor goes into a layer.
        self._uses: collections.Counter[int] = collections.Counter()
        self._leads_to: dict[int, Any] = {}
        self._layouts: dict[int, AnyLayout | None] = {}
        self._to_place: list[tuple[Any, dict[str, Layout]]] = []

    def enter(self, model: Any) -> None:
        """Makes the new layers of a functional model."""
        self._leads_to.update(leading(model))
        for node in _keras_graph.nodes(model):
            self._uses.update(id(x) for x in node.input_tensors)
        for node in _keras_graph.nodes(model):
            if not node.is_input:
                self._visit(node)

    def place(self) -> None:
        """Cuts the weights that lie beside shards."""
        while self._to_place:
            layer, layouts = self._to_place.pop()
            for name, layout in layouts.items():
                place(getattr(layer, name), layout)

    def _visit(self, node: Any) -> None:
        layer = node.operation
        new_layer = self._copy(layer)
        if _keras_graph.is_graph(layer):
            return  # What goes in and comes out of it is joined.
        inputs = [
            self._layouts.get(id(tensor)) for tensor in node.input_tensors
        ]
        output_layout = None
        if id(layer) not in self._settled:
            self._settled.add(id(layer))
            output_layout = self._settle(layer, new_layer, node, inputs)
        for output in node.outputs:
            self._layouts[id(output)] = output_layout

    def _settle(
        self,
        layer: Any,
        new_layer: Any,
        node: Any,
        inputs: list[AnyLayout | None],
    ) -> AnyLayout | None:
        """Tells a new layer how its input lies; returns its output's layout."""
        if isinstance(new_layer, ConvParallel):
            shape = node.input_tensors[0].shape
            alone = self._fuses and self._has_sole_user(node)
            return new_layer.join_region(shape, inputs[0], recomputable=alone)
        by_samples = [x for x in inputs if isinstance(x, SampleLayout)]
        if by_samples:
            on_samples = works_on_samples(node, self._moments)
            if on_samples is None:
                return None
            call = self._op_call(node)
            attach(
                new_layer,
                OnSamples(
                    *(new_layer, on_samples, by_samples[0]),
                    op_call=call,
                    sole_user=self._has_sole_user(node),
                ),
            )
            return by_samples[0]
        if id(node) in self._leads_to:
            layout = self._lead(new_layer, node)
            if layout is not None:
                return layout
        input_layouts = [x for x in inputs if isinstance(x, Layout)]
        on_channels = works_on_channels(node, input_layouts)
        if on_channels is None:
            shapes = [tensor.shape for tensor in node.input_tensors]
            if self._fuses and not input_layouts and fuses(layer, shapes):
                used = [self._uses[id(x)] for x in node.input_tensors]
                new_layer.call = Fused(
                    new_layer, [count == 1 for count in used]
                )
            return None
        rule, output = on_channels
        call = self._op_call(node)
        alone = self._has_sole_user(node)
        attach(new_layer, OnShards(new_layer, rule, input_layouts, call, alone))
        weight_layouts = dict(rule.place(layer, input_layouts))
        if weight_layouts:
            self._to_place.append((new_layer, weight_layouts))
        return output

    def _lead(self, new_layer: Any, node: Any) -> AnyLayout | None:
        """Lets a layer work where the first convolution's samples will be.

        Returns the layout of these samples; None if it stays on the chief.
        """
        first = self._copy(self._leads_to[id(node)])
        rule = works_on_samples(node)
        if not isinstance(first, ConvParallel) or rule is None:
            return None
        layout = first.samples_layout(node.outputs[0].shape)
        if layout is not None:
            call = self._op_call(node)
            attach(
                new_layer,
                OnSamples(
                    *(new_layer, rule, layout, True, call),
                    sole_user=self._has_sole_user(node),
                ),
            )
        return layout

    def _op_call(self, node: Any) -> OpCall | None:
        """What computes a layer by ops on CPUs; None for the layer's own."""
        if not self._fuses:
            return None
        shapes = [tensor.shape for tensor in node.input_tensors]
        return op_call_of(node.operation, shapes)

    def _has_sole_user(self, node: Any) -> bool:
        """Whether one other layer alone uses a layer's result."""
        return sum(self._uses[id(tensor)] for tensor in node.outputs) == 1
