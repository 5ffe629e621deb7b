"""The graph of a model as the planner sees it: calls, tensors, what learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_convpar.sharding import _twins
from tf_convpar.sharding import _walk
from tf_convpar.sharding._where import leading
from tf_convpar.sharding._whole import why_whole


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Feature maps, or whatever else goes from layer to layer.

    Attributes:
        shape: Of one sample.
        width: Bytes of a number.
        learns: Whether anything before it does, so that a gradient returns.
    """

    shape: tuple[int, ...]
    width: int
    learns: bool

    def of(self, samples: int) -> tuple[int, ...]:
        """The shape of so many samples."""
        return samples, *self.shape


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        node: Of Keras' graph; None at the border of a model within the model.
        layer: A layer or an operation; None likewise.
        inputs: Tensors, by their numbers.
        outputs: Likewise.
        before: Whether anything before the layer learns.
        splits: Whether it is a convolution that may be split.
        leads_to: The convolution whose samples it works on, if that is split
            by samples: its layer's name. Empty but for what comes first.
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
        """Of the layer."""
        return str(getattr(self.layer, "name", ""))


@dataclasses.dataclass(frozen=True)
class Graph:
    """Calls in the order in which they run.

    Attributes:
        name: Of the model.
        calls: All of them, those of models within the model included.
        tensors: What goes between them.
        outputs: Of the model: tensors that are joined on the chief.
        keys: Of calls, as `_works.key` finds them: by identity, once each.
    """

    name: str
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...]
    outputs: tuple[int, ...]
    keys: dict[int, str] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def convolutions(self) -> tuple[Call, ...]:
        """Those that may be split, each layer once."""
        found = {id(call.layer): call for call in self.calls if call.splits}
        return tuple(found.values())


def of_model(model: keras.Model) -> Graph:
    """The graph of a model.

    ```python
    of_model(keras.applications.ResNet50(weights=None)).convolutions
    ```

    Args:
        model: Sequential or functional, built for images of known size.

    Raises:
        ValueError: It has no graph, or a tensor of unknown size.
    """
    if not _walk.is_graph(model) or not model.built:
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
        for x in keras.tree.flatten(_walk.graph_of(model).outputs)
    ]
    return Graph(
        model.name, tuple(reader.calls), tuple(reader.tensors), tuple(outputs)
    )


class _Reader:
    """Goes through models."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        self.numbers: dict[int, int] = {}

    def enter(self, model: Any, held_by: Sequence[Any], learns: bool) -> None:
        """Reads a model.

        Args:
            model: The model.
            held_by: Those that it is in.
            learns: Whether anything before it does.
        """
        held_by = (*held_by, model)
        leads_to = leading(model)
        for node in _walk.nodes(model):
            if node.is_input:
                # A model is called once in most; else its tensors are new.
                self._made(node.outputs, learns)
            else:
                self._call(node, held_by, leads_to.get(id(node)))

    def _call(self, node: Any, held_by: Sequence[Any], first: Any) -> None:
        layer = node.operation
        inputs = tuple(self.numbers[id(x)] for x in node.input_tensors)
        before = any(self.tensors[i].learns for i in inputs)
        if _walk.is_graph(layer):
            self._model(node, inputs, before, held_by)
            return
        splits = (
            _twins.is_convolution(layer)
            and bool(getattr(layer, "built", False))
            and why_whole(layer, held_by) is None
        )
        learns = before or bool(getattr(layer, "trainable_weights", ()))
        outputs = self._made(node.outputs, learns)
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
        """What goes into a model within the model, and comes out, is joined."""
        model = node.operation
        graph = _walk.graph_of(model)
        entry = len(self.calls)
        self.enter(model, held_by, before)
        own = tuple(
            self.numbers[id(x)] for x in keras.tree.flatten(graph.inputs)
        )
        self.calls.insert(entry, Call(None, None, inputs, own, before))
        left = tuple(
            self.numbers[id(x)] for x in keras.tree.flatten(graph.outputs)
        )
        learns = any(self.tensors[i].learns for i in left)
        outputs = self._made(node.outputs, learns)
        self.calls.append(Call(None, None, left, outputs, learns))

    def _made(self, tensors: Sequence[Any], learns: bool) -> tuple[int, ...]:
        found = []
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
            found.append(len(self.tensors))
            width = tf.as_dtype(tensor.dtype).size
            self.tensors.append(Tensor(shape, width, learns))
        return tuple(found)
