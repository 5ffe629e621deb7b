"""A model's graph: its calls, its tensors, and which of them need gradients.

Traffic is counted and plans are made by it. Models within the model are part
of it, each call of them anew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.sharding import _conversion
from tf_convpar.sharding import _keras_graph
from tf_convpar.sharding._placement_rules import leading
from tf_convpar.sharding._unsplit_convolutions import why_unsplit


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor between layers: feature maps, or anything else.

    Attributes:
        shape: Shape of one sample, without the batch axis.
        width: Bytes of one number.
        learns: Whether a layer that it depends on has trainable weights, so
            that its gradient is computed.
        scalar: Whether it is one number, however many samples there are.
    """

    shape: tuple[int, ...]
    width: int
    learns: bool
    scalar: bool = False

    def batch_shape(self, samples: int) -> tuple[int, ...]:
        """Returns the shape for a batch of `samples`."""
        return () if self.scalar else (samples, *self.shape)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer, or the border of a model within the model.

    Attributes:
        node: Node of Keras' graph; None at a border.
        layer: Layer or operation that is called; None at a border.
        inputs: Numbers of the input tensors in `Graph.tensors`.
        outputs: Numbers of the output tensors in `Graph.tensors`.
        before: Whether a layer before this one learns.
        splits: Whether it is a convolution that may be split, or a dense layer
            that may be split by its units.
        leads_to: For a call before the model's first convolutions, the name of
            the one that it leads to. If that is split by samples, this call
            works on the same samples. Empty for all other calls.
    """

    node: Any
    layer: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    before: bool = False
    splits: bool = False
    leads_to: str = ""

    @property
    def name(self) -> str:
        """Name of the layer; empty at a border."""
        return str(getattr(self.layer, "name", ""))


@dataclasses.dataclass(frozen=True)
class Graph:
    """A model's calls, in the order in which they run.

    Attributes:
        name: Name of the model.
        calls: All calls, those of models within the model included.
        tensors: Tensors that go between the calls.
        outputs: Numbers of the model's output tensors, which are joined on
            the chief.
        models: The model and those within it, once for each call.
        keys: Results of `planner._work_keys.key`, by the identity of the call.
    """

    name: str
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...]
    outputs: tuple[int, ...]
    models: tuple[Any, ...] = dataclasses.field(repr=False, compare=False)
    keys: dict[int, str] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    @functools.cached_property
    def algorithms(self) -> frozenset[str]:
        """Algorithms of its parallel layers; plain ones have none."""
        names = {getattr(call.layer, "algorithm", None) for call in self.calls}
        return frozenset(name for name in names if name)

    @property
    def convolutions(self) -> tuple[Call, ...]:
        """Calls of the convolutions that may be split, one for each layer."""
        by_layer = {id(call.layer): call for call in self.calls if call.splits}
        return tuple(by_layer.values())


def calls_of(model: keras.Model) -> Graph:
    """Reads the graph of a model.

    ```python
    calls_of(keras.applications.ResNet50(weights=None)).convolutions
    ```

    Args:
        model: Sequential or functional model, built for images of known size.

    Raises:
        ValueError: The model has no graph, or a tensor of unknown size.
    """
    if not _keras_graph.is_graph(model) or not model.built:
        raise ValueError(
            "Expected a built Sequential or functional model: only those have "
            f"a graph that can be planned. Received: '{model.name}', a "
            f"{type(model).__name__}. Make a functional one of the same "
            "layers: keras.Model(inputs, outputs)."
        )
    reader = _Reader()
    reader.enter(model, (), learns=False)
    outputs = [
        reader.numbers[id(x)]
        for x in keras.tree.flatten(_keras_graph.graph_of(model).outputs)
    ]
    return Graph(
        model.name,
        tuple(reader.calls),
        tuple(reader.tensors),
        tuple(outputs),
        tuple(reader.models),
    )


class _Reader:
    """Collects the calls and tensors of a model and of those within it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        self.models: list[Any] = []
        self.numbers: dict[int, int] = {}

    def enter(self, model: Any, held_by: Sequence[Any], learns: bool) -> None:
        """Reads a model.

        Args:
            model: The model.
            held_by: Models that it is in, the outermost first.
            learns: Whether a layer before the model learns.
        """
        held_by = (*held_by, model)
        self.models.append(model)
        leads_to = leading(model)
        for node in _keras_graph.nodes(model):
            if node.is_input:
                # Every call of a model within the model makes new tensors.
                self._add_tensors(node.outputs, learns)
            else:
                self._call(node, held_by, leads_to.get(id(node)))

    def _call(self, node: Any, held_by: Sequence[Any], first: Any) -> None:
        layer = node.operation
        inputs = tuple(self.numbers[id(x)] for x in node.input_tensors)
        before = any(self.tensors[i].learns for i in inputs)
        if _keras_graph.is_graph(layer):
            self._model(node, inputs, before, held_by)
            return
        splits = (
            _conversion.may_be_split(layer)
            and bool(getattr(layer, "built", False))
            and why_unsplit(layer, held_by) is None
        )
        learns = before or bool(getattr(layer, "trainable_weights", ()))
        outputs = self._add_tensors(node.outputs, learns)
        leads_to = str(first.name) if first is not None else ""
        self.calls.append(
            Call(node, layer, inputs, outputs, before, splits, leads_to)
        )

    def _model(
        self,
        node: Any,
        inputs: tuple[int, ...],
        before: bool,
        held_by: Sequence[Any],
    ) -> None:
        """Reads a call of a model within the model.

        Its inputs and outputs are joined on the chief, so each of the two
        borders becomes a call without a layer.
        """
        model = node.operation
        graph = _keras_graph.graph_of(model)
        entry = len(self.calls)
        self.enter(model, held_by, before)
        inner_inputs = tuple(
            self.numbers[id(x)] for x in keras.tree.flatten(graph.inputs)
        )
        self.calls.insert(entry, Call(None, None, inputs, inner_inputs, before))
        inner_outputs = tuple(
            self.numbers[id(x)] for x in keras.tree.flatten(graph.outputs)
        )
        learns = any(self.tensors[i].learns for i in inner_outputs)
        outputs = self._add_tensors(node.outputs, learns)
        self.calls.append(Call(None, None, inner_outputs, outputs, learns))

    def _add_tensors(
        self, tensors: Sequence[Any], learns: bool
    ) -> tuple[int, ...]:
        numbers = []
        for tensor in tensors:
            shape = tuple(tensor.shape[1:])
            if None in shape:
                raise ValueError(
                    "Expected a model for inputs of known size. Received: a "
                    f"tensor of shape {tuple(tensor.shape)}, '{tensor.name}'. "
                    "Build the model with the size of an image, as in "
                    "keras.Input((224, 224, 3))."
                )
            self.numbers[id(tensor)] = len(self.tensors)
            numbers.append(len(self.tensors))
            width = tf.as_dtype(tensor.dtype).size
            scalar = not tensor.shape
            self.tensors.append(Tensor(shape, width, learns, scalar))
        return tuple(numbers)
