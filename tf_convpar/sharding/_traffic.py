"""The bytes and messages that a step must move, by theory."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.layers import ConvParallel
from tf_convpar.placement import AnyLayout
from tf_convpar.placement import Move
from tf_convpar.placement import messages_of
from tf_convpar.sharding import _keras_graph
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding._graph_execution import needed_of
from tf_convpar.sharding._model_graph import Call
from tf_convpar.sharding._model_graph import Graph
from tf_convpar.sharding._model_graph import calls_of
from tf_convpar.sharding.rules import CHIEF


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes and messages on the wire in one step.

    Attributes:
        links: Bytes from the first device of each pair to the second.
        chief: The chief's device.
        messages: Tensors from the first device of each pair to the second:
            feature maps, their gradients, moments, and packs of weights.
    """

    links: Mapping[tuple[str, str], int]
    chief: str
    messages: Mapping[tuple[str, str], int] = dataclasses.field(
        default_factory=dict
    )

    @property
    def sent(self) -> int:
        """Bytes that the chief sends."""
        return sum(n for (a, _), n in self.links.items() if a == self.chief)

    @property
    def received(self) -> int:
        """Bytes that the chief receives."""
        return sum(n for (_, b), n in self.links.items() if b == self.chief)

    @property
    def total(self) -> int:
        """Bytes between all devices."""
        return sum(self.links.values())


def step_traffic(
    model: keras.Model, batch_size: int, training: bool = True
) -> Traffic:
    """The bytes and messages of a step of a model.

    ```python
    traffic = step_traffic(model, batch_size=64)
    traffic.total  # bytes in a training step
    sum(traffic.messages.values())
    ```

    Feature maps that a device needs and does not have are sent to it, once,
    by the devices that have them. In the backward pass as many numbers of
    their gradient return, if anything before them learns. For a convolution
    that is split by filters, every device needs all of the input. For one that
    is split by samples, a device needs its samples and all kernels. Layers and
    their rules state what they need: `ConvParallel.moves`, `Rule.moves`,
    `SampleRule.moves`.

    Args:
        model: A built model with parallel layers, Sequential or functional;
            from `parallelize` or not.
        batch_size: Images per step.
        training: Whether there is a backward pass.

    Returns:
        Bytes and messages over each link.

    Raises:
        ValueError: The model has no graph, or a tensor of unknown size.
    """
    count = _TrafficCounter(calls_of(model), batch_size, training)
    links: dict[tuple[str, str], int] = collections.Counter()
    for move in count.moves:
        links.update(move.links())
        if not move.packed:
            count.messages.update(move.messages())
    chief = count.moves[0].owner if count.moves else ""
    return Traffic(
        {k: n for k, n in links.items() if n},
        chief,
        {k: n for k, n in count.messages.items() if n},
    )


class _TrafficCounter:
    """Counts the tensors that each call of a graph sends."""

    def __init__(self, graph: Graph, batch: int, training: bool) -> None:
        self.moves: list[Move] = []
        self.messages: collections.Counter[tuple[str, str]] = (
            collections.Counter()
        )
        self._graph = graph
        self._batch = batch
        self._training = training
        # Where tensors of the graph lie in shards, by their numbers.
        self._layouts: dict[int, AnyLayout] = {}
        self._shared_moves: set[Any] = set()
        for model in graph.models:
            needed = needed_of(_keras_graph.graph_of(model), training)
            self.messages.update(messages_of(needed, training))
        for call in graph.calls:
            layout = self._call(call)
            if layout is not None:
                self._layouts.update(dict.fromkeys(call.outputs, layout))
                layer = call.layer
                if isinstance(layer, ConvParallel) and not layer._in_region:
                    for number in call.outputs:
                        self._join(number)
                        del self._layouts[number]
        for number in graph.outputs:
            self._join(number)

    def _call(self, call: Call) -> AnyLayout | None:
        """Counts what a call moves; returns the layout of its output."""
        layer, before = call.layer, call.before
        shapes = [
            self._graph.tensors[x].batch_shape(self._batch) for x in call.inputs
        ]
        layouts = [self._layouts.get(x) for x in call.inputs]
        if isinstance(layer, ConvParallel) and layer.is_spread:
            self._note(layer.moves(shapes[0], layouts[0], before), call.inputs)
            kernel_layout: Any = layer._layout
            output_layout: Any = layer._samples or layer._layout_of_maps(
                kernel_layout, shapes[0]
            )
            wire = output_layout.wire_dtype(layer.compute_dtype).name
            return dataclasses.replace(output_layout, wire=wire)
        attached = vars(layer).get("call") if layer is not None else None
        if isinstance(attached, OnSamples) and (attached.first or any(layouts)):
            moves = attached.rule.moves(
                layer, attached.layout, shapes, layouts, before, self._training
            )
            self._note(moves, call.inputs)
            return attached.layout
        if isinstance(attached, OnShards) and _as_expected(
            layouts, attached.expected
        ):
            output = attached.rule.output(layer, attached.expected, shapes[0])
            if output is not None:
                moves = attached.rule.moves(layer, attached.expected, shapes)
                self._note(moves, call.inputs)
                return None if output is CHIEF else output
        for x in call.inputs:
            self._join(x)
        return None

    def _note(self, moves: Sequence[Move], inputs: Sequence[int]) -> None:
        """Notes moves, the first of which are those of the inputs."""
        for i, move in enumerate(moves):
            forward_only = not self._training and move.returns
            move = dataclasses.replace(
                move, returns=move.returns and not forward_only
            )
            if i < len(inputs) and move.place is not None:
                # Layers that branch off from shards share what is made of
                # them.
                key = inputs[i], move.wanted, move.width
                if key in self._shared_moves:
                    continue
                self._shared_moves.add(key)
            self.moves.append(move)

    def _join(self, number: int) -> None:
        """Sends shards to the chief, if that has not been done."""
        layout = self._layouts.get(number)
        if layout is None:
            return
        tensor = self._graph.tensors[number]
        wire = tf.as_dtype(layout.wire).size if layout.wire else tensor.width
        width = min(wire, tensor.width)
        shape = tensor.batch_shape(self._batch)
        move = Move(shape, layout, None, layout.owner, width, tensor.learns)
        self._note([move], [number])


def _as_expected(layouts: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether shards lie as a rule was told; if not, they are joined."""
    return len(layouts) == len(expected) and all(
        a is not None and a.matches(b)
        for a, b in zip(layouts, expected, strict=True)
    )
