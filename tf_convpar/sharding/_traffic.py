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
from tf_convpar.sharding import _walk
from tf_convpar.sharding._attach import OnSamples
from tf_convpar.sharding._attach import OnShards
from tf_convpar.sharding._graph import needed_of
from tf_convpar.sharding.rules import CHIEF


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What is on the wire in one step.

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
    """The bytes and messages of a step of a model; slots never travel.

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
    """
    count = _Count(batch_size, training)
    count.model(model)
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


class _Count:
    """Goes through the layers of a graph and notes what they move."""

    def __init__(self, batch: int, training: bool) -> None:
        self.moves: list[Move] = []
        self.messages: collections.Counter[tuple[str, str]] = (
            collections.Counter()
        )
        self._batch = batch
        self._training = training
        # For tensors of the graph, by their `id`: where they lie in shards, and
        # whether anything before them learns.
        self._lies: dict[int, AnyLayout] = {}
        self._learns: dict[int, bool] = {}
        self._made: set[Any] = set()

    def model(self, model: Any, learns: bool = False) -> bool:
        """Counts a model; returns whether it, or anything before it, learns."""
        after = learns
        graph = _walk.graph_of(model)
        needed = needed_of(graph, self._training)
        self.messages.update(messages_of(needed, self._training))
        for node in _walk.nodes(model):
            if node.is_input:
                for tensor in node.outputs:
                    self._learns[id(tensor)] = learns
            else:
                after = self._node(node) or after
        for tensor in keras.tree.flatten(graph.outputs):
            self._join(tensor)
        return after

    def _node(self, node: Any) -> bool:
        layer, inputs = node.operation, node.input_tensors
        before = any(self._learns.get(id(x), False) for x in inputs)
        lies: AnyLayout | None = None
        if _walk.is_graph(layer):
            for x in inputs:
                self._join(x)
            learns = self.model(layer, before)
        else:
            learns = before or bool(getattr(layer, "trainable_weights", ()))
            lies = self._layer(layer, inputs, before)
        joined = isinstance(layer, ConvParallel) and not layer._in_region
        for tensor in node.outputs:
            self._learns[id(tensor)] = learns
            if lies is not None:
                self._lies[id(tensor)] = lies
                if joined:
                    self._join(tensor)
                    del self._lies[id(tensor)]
        return learns

    def _layer(
        self, layer: Any, inputs: Sequence[Any], before: bool
    ) -> AnyLayout | None:
        """Counts what a layer moves; returns the layout of its output."""
        shapes = [self._shape(x) for x in inputs]
        lies = [self._lies.get(id(x)) for x in inputs]
        if isinstance(layer, ConvParallel) and layer.is_spread:
            self._note(layer.moves(shapes[0], lies[0], before), inputs)
            cut: Any = layer._layout
            layout: Any = layer._samples or layer._layout_of_maps(
                cut, shapes[0]
            )
            wire = layer._wire_dtype_for(layer.compute_dtype).name
            return dataclasses.replace(layout, wire=wire)
        call = vars(layer).get("call")
        if isinstance(call, OnSamples) and (call.first or any(lies)):
            moves = call.rule.moves(
                layer, call.layout, shapes, lies, before, self._training
            )
            self._note(moves, inputs)
            return call.layout
        if isinstance(call, OnShards) and _as_expected(lies, call.expected):
            output = call.rule.output(layer, call.expected, shapes[0])
            if output is not None:
                moves = call.rule.moves(layer, call.expected, shapes)
                self._note(moves, inputs)
                return None if output is CHIEF else output
        for x in inputs:
            self._join(x)
        return None

    def _note(self, moves: Sequence[Move], inputs: Sequence[Any]) -> None:
        """Notes moves, the first of which are those of the inputs."""
        for i, move in enumerate(moves):
            asked = not self._training and move.returns
            move = dataclasses.replace(move, returns=move.returns and not asked)
            if i < len(inputs) and move.lies is not None:
                # Layers that branch off from shards share what is made of
                # them.
                key = id(inputs[i]), move.wanted, move.width
                if key in self._made:
                    continue
                self._made.add(key)
            self.moves.append(move)

    def _join(self, x: Any) -> None:
        """Sends shards to the chief, if that has not been done."""
        lies = self._lies.get(id(x))
        if lies is None:
            return
        own = tf.as_dtype(x.dtype).size
        width = min(tf.as_dtype(lies.wire or x.dtype).size, own)
        learns = self._learns[id(x)]
        move = Move(self._shape(x), lies, None, lies.owner, width, learns)
        self._note([move], [x])

    def _shape(self, x: Any) -> tuple[int, ...]:
        return _walk.shape_for(x, self._batch)


def _as_expected(lies: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether shards lie as a rule was told; if not, they are joined."""
    return len(lies) == len(expected) and all(
        a is not None and a.matches(b)
        for a, b in zip(lies, expected, strict=True)
    )
